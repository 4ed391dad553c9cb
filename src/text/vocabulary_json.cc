// Tokens and merges are far too many for a JsonNode each: one is made only to name a fault.
#include "text/vocabulary_json.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "json/quoted.h"
#include "text/byte_level.h"

namespace deepinfer::text {
namespace {

std::vector<AddedToken> read_added(const json::JsonNode& list) {
  std::vector<AddedToken> added;
  if (list.is_null()) return added;
  for (std::size_t i = 0; i < list.array().size(); ++i) {
    const json::JsonNode node = list[i];
    const std::int64_t id = node["id"].integer();
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      node["id"].bad("expected a token id, found " + std::to_string(id));
    }
    if (node["content"].string().empty()) node["content"].bad("expected a token, found nothing");
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
      if (node[name].boolean_or(false)) node[name].unsupported("true is not supported");
    }
    added.push_back({node["content"].string(), static_cast<std::int32_t>(id),
                     node["special"].boolean(), node["normalized"].boolean()});
  }
  return added;
}

// The ids of the vocabulary and of the added tokens in one list. A token may be in both.
class IdList {
 public:
  explicit IdList(std::size_t most) : written_(most) {}

  void set(std::int64_t id, std::string_view written, const json::JsonNode& list) {
    // With more ids than tokens there must be a gap, so the bound needs no second look.
    if (id < 0 || static_cast<std::size_t>(id) >= written_.size()) {
      list.bad("expected ids without gaps, found " + std::to_string(id) + " for token " +
               json::in_quotes(written));
    }
    std::optional<std::string_view>& slot = written_[static_cast<std::size_t>(id)];
    if (slot && *slot != written) {
      list.bad("id " + std::to_string(id) + " is given to both " + json::in_quotes(*slot) +
               " and " + json::in_quotes(written));
    }
    num_ids_ += slot ? 0 : 1;
    slot = written;
  }

  std::vector<std::string_view> finish(const json::JsonNode& list) const {
    std::vector<std::string_view> written;
    for (std::size_t id = 0; id < num_ids_; ++id) {
      if (!written_[id]) list.bad("expected ids without gaps, found none of " + std::to_string(id));
      written.push_back(*written_[id]);
    }
    return written;
  }

 private:
  std::vector<std::optional<std::string_view>> written_;
  std::size_t num_ids_ = 0;
};

struct Pair {
  std::string_view left;
  std::string_view right;
};

// Both spellings of a merge: "a b" and ["a", "b"].
std::optional<Pair> pair_of(const json::Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return Pair{merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string_view line = merge.get_ref<const std::string&>();
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  return Pair{line.substr(0, space), line.substr(space + 1)};
}

ByteTokens byte_tokens_of(const Vocabulary& vocabulary) {
  ByteTokens tokens;
  tokens.fill(-1);
  for (const auto& [written, id] : vocabulary.ids) {
    const std::optional<std::string> bytes = bytes_of_written(written);
    if (bytes && bytes->size() == 1) tokens[static_cast<unsigned char>(bytes->front())] = id;
  }
  return tokens;
}

// One name, one id: over both lists.
void check_added_names(const Vocabulary& vocabulary, const json::JsonNode& added_tokens) {
  std::unordered_map<std::string_view, std::int32_t> ids;
  for (const AddedToken& token : vocabulary.added) {
    const auto in_vocab = vocabulary.ids.find(token.content);
    const std::int32_t other = in_vocab == vocabulary.ids.end()
                                   ? ids.emplace(token.content, token.id).first->second
                                   : in_vocab->second;
    if (other != token.id) {
      added_tokens.bad("token " + json::in_quotes(token.content) + " has both id " +
                       std::to_string(other) + " and id " + std::to_string(token.id));
    }
  }
}

}  // namespace

Vocabulary read_vocabulary(const json::JsonNode& vocab, const json::JsonNode& added_tokens) {
  Vocabulary vocabulary;
  vocabulary.added = read_added(added_tokens);
  const auto& members = vocab.object().get_ref<const json::Json::object_t&>();
  IdList list(members.size() + vocabulary.added.size());
  vocabulary.ids.reserve(members.size());
  for (const auto& [written, value] : members) {
    const std::optional<std::int64_t> id = json::integer_of(value);
    if (!id) vocab.bad("expected an integer for token " + json::in_quotes(written));
    list.set(*id, written, vocab);
    vocabulary.ids.emplace(written, static_cast<std::int32_t>(*id));
  }
  check_added_names(vocabulary, added_tokens);
  for (const AddedToken& token : vocabulary.added) list.set(token.id, token.content, added_tokens);
  vocabulary.written = list.finish(vocab);
  return vocabulary;
}

TokenTable make_token_table(const Vocabulary& vocabulary) {
  using Spelling = TokenTable::Spelling;
  std::unordered_map<std::int32_t, bool> added;  // id -> special
  for (const AddedToken& token : vocabulary.added) added.emplace(token.id, token.special);
  TokenTable table;
  for (const std::string_view written : vocabulary.written) {
    const auto found = added.find(table.size());
    const std::optional<std::string> bytes = bytes_of_written(written);
    const bool special = found != added.end() && found->second;
    // An added token that is not in the vocabulary as well was never spelled in the byte alphabet.
    if (bytes && vocabulary.ids.contains(written)) {
      table.add(*bytes, Spelling::kByteLevel, special);
    } else {
      table.add(written, Spelling::kLiteral, special);
    }
  }
  table.build_index();
  return table;
}

Bpe read_bpe(const json::JsonNode& merges, const Vocabulary& vocabulary) {
  const json::Json& list = merges.array();
  MergeTable table(list.size());
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    // A line that older files inherited from merges.txt.
    if (list[i].is_string() && list[i].get_ref<const std::string&>().starts_with("#version")) {
      continue;
    }
    const std::optional<Pair> pair = pair_of(list[i]);
    if (!pair) merges[i].bad("expected two tokens, found " + json::in_quotes(list[i].dump()));
    const auto id_of = [&](std::string_view token) {
      const auto found = vocabulary.ids.find(token);
      if (found == vocabulary.ids.end()) {
        merges[i].bad("token " + json::in_quotes(token) + " is not in the vocabulary");
      }
      return found->second;
    };
    const std::string joined = std::string(pair->left).append(pair->right);
    const Merge merge{id_of(pair->left), id_of(pair->right), id_of(joined)};
    if (!table.insert(merge, rank++)) {
      merges[i].bad("the merge of " + json::in_quotes(pair->left) + " and " +
                    json::in_quotes(pair->right) + " is listed twice");
    }
  }
  return Bpe(byte_tokens_of(vocabulary), std::move(table));
}

}  // namespace deepinfer::text
