// Every member that could change an id is either understood or refused. Not read: `truncation` and
// `padding` (the callers' business), `post_processor` beyond its type (begin-of-text tokens are not
// added), `trim_offsets` (there are no offsets).
#include "text/tokenizer_json.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "deepinfer/error.h"
#include "json/json_node.h"
#include "json/quoted.h"
#include "text/normalizer.h"
#include "text/vocabulary_json.h"

namespace deepinfer::text {
namespace {

[[noreturn]] void refuse_type(const json::JsonNode& node, const std::string& type) {
  node.unsupported(json::in_quotes(type) + " is not supported");
}

bool read_normalizer(const json::JsonNode& node) {
  if (node.is_null()) return false;
  const std::string& type = node["type"].string();
  if (type != "NFC") refuse_type(node, type);
  return true;
}

void check_post_processor(const json::JsonNode& node) {
  if (node.is_null()) return;
  const std::string& type = node["type"].string();
  if (type == "ByteLevel" || type == "TemplateProcessing") return;
  if (type != "Sequence") refuse_type(node, type);
  const json::JsonNode processors = node["processors"];
  for (std::size_t i = 0; i < processors.array().size(); ++i) {
    const std::string& inner = processors[i]["type"].string();
    if (inner != "ByteLevel" && inner != "TemplateProcessing") refuse_type(processors[i], inner);
  }
}

void check_decoder(const json::JsonNode& node) {
  if (node.is_null()) node.unsupported("only the decoder \"ByteLevel\" is supported, found none");
  const std::string& type = node["type"].string();
  if (type != "ByteLevel") refuse_type(node, type);
}

class PreTokenizerReader {
 public:
  PreTokenizer read(const json::JsonNode& node) {
    if (!node.is_null()) read_step(node);
    if (!byte_level_)
      node.unsupported(
          "only byte-level tokenizers are supported, found none of "
          "type \"ByteLevel\"");
    return std::move(result_);
  }

 private:
  void read_step(const json::JsonNode& node) {
    const std::string& type = node["type"].string();
    if (type == "Sequence") {
      read_sequence(node["pretokenizers"]);
      return;
    }
    // From here on the reference implementation sees the byte alphabet instead of text.
    if (byte_level_)
      node.unsupported(json::in_quotes(type) + " after \"ByteLevel\" is not supported");
    if (type == "ByteLevel") {
      read_byte_level(node);
    } else if (type == "Digits") {
      const bool individual = node["individual_digits"].boolean();
      result_.add_split(Regex::from_pattern(individual ? R"(\p{N})" : R"(\p{N}+)", node.where()),
                        true);
    } else if (type == "Split") {
      read_split(node);
    } else {
      refuse_type(node, type);
    }
  }

  void read_sequence(const json::JsonNode& list) {
    constexpr int kDeepest = 8;        // published files have one level
    constexpr std::size_t kMost = 32;  // and at most four steps
    if (++depth_ > kDeepest) list.unsupported("nested too deeply");
    for (std::size_t i = 0; i < list.array().size(); ++i) {
      if (result_.num_steps() >= kMost) list.unsupported("too many pre-tokenizers");
      read_step(list[i]);
    }
    --depth_;
  }

  void read_byte_level(const json::JsonNode& node) {
    byte_level_ = true;
    if (node["add_prefix_space"].boolean()) result_.add_prefix_space();
    if (!node["use_regex"].boolean_or(true)) return;
    result_.add_split(Regex::from_pattern(kGpt2Pattern, node.where()), true);
  }

  void read_split(const json::JsonNode& node) {
    if (node["invert"].boolean()) node["invert"].unsupported("true is not supported");
    const std::string& behavior = node["behavior"].string();
    if (behavior != "Isolated" && behavior != "Removed") refuse_type(node["behavior"], behavior);
    const json::JsonNode pattern = node["pattern"];
    const json::JsonNode regex = pattern["Regex"];
    const json::JsonNode literal = pattern["String"];
    result_.add_split(literal.is_null() ? Regex::from_pattern(regex.string(), regex.where())
                                        : Regex::from_literal(literal.string(), literal.where()),
                      behavior == "Isolated");
  }

  PreTokenizer result_;
  bool byte_level_ = false;
  int depth_ = 0;
};

// The members of the model that are off in byte-level tokenizers.
void check_model(const json::JsonNode& model) {
  const std::string& type = model["type"].string();
  if (type != "BPE") refuse_type(model, type);
  if (model["byte_fallback"].boolean_or(false)) {
    model["byte_fallback"].unsupported("true is not supported");
  }
  for (const char* name : {"dropout", "unk_token"}) {
    if (!model[name].is_null()) model[name].unsupported("only null is supported");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json::JsonNode node = model[name];
    if (!node.is_null() && !node.string().empty()) refuse_type(node, node.string());
  }
}

}  // namespace

TokenizerParts parse_tokenizer(std::string_view bytes, const std::string& file) {
  // Offsets into the tokens take 32 bits.
  static_assert(json::kMaxJsonBytes <= std::numeric_limits<std::int32_t>::max());
  const json::Json json = json::parse_json(bytes, file);
  const json::JsonNode root(json, file);
  const json::JsonNode model = root["model"];
  check_model(model);
  check_post_processor(root["post_processor"]);
  check_decoder(root["decoder"]);
  const bool nfc = read_normalizer(root["normalizer"]);
  PreTokenizer pre_tokenizer = PreTokenizerReader().read(root["pre_tokenizer"]);

  const Vocabulary vocabulary = read_vocabulary(model["vocab"], root["added_tokens"]);
  TokenizerParts parts{.tokens = make_token_table(vocabulary),
                       .raw_added = {},
                       .normalized_added = {},
                       .nfc = nfc,
                       .pre_tokenizer = std::move(pre_tokenizer),
                       .bpe = read_bpe(model["merges"], vocabulary),
                       .ignore_merges = model["ignore_merges"].boolean_or(false)};
  for (const AddedToken& token : vocabulary.added) {
    std::string storage;
    if (token.normalized) {
      const std::string_view content = nfc ? to_nfc(token.content, storage) : token.content;
      parts.normalized_added.add(content, token.id, token.special);
    } else {
      parts.raw_added.add(token.content, token.id, token.special);
    }
  }
  return parts;
}

}  // namespace deepinfer::text
