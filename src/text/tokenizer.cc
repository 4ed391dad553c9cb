// The way of a text to token ids: repair UTF-8, cut out added tokens, normalize, cut out the added
// tokens that want normalized text, cut into words, byte pair encoding. And the way back.
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "json/json_node.h"
#include "text/normalizer.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace deepinfer {

using text::TokenTable;

struct Tokenizer::State {
  text::TokenizerParts parts;
};

namespace {

/// One call of encode().
class Encoder {
 public:
  Encoder(const text::TokenizerParts& parts, bool parse_special)
      : parts_(parts),
        parse_special_(parse_special),
        on_word_([this](std::string_view word) { encode_word(word); }) {}

  std::vector<std::int32_t> run(std::string_view input) {
    std::string storage;
    parts_.raw_added.split(
        text::repair_utf8(input, storage), parse_special_,
        [this](std::string_view stretch) { encode_stretch(stretch); },
        [this](std::int32_t id) { ids_.push_back(id); });
    return std::move(ids_);
  }

 private:
  void encode_stretch(std::string_view stretch) {
    std::string storage;
    parts_.normalized_added.split(
        parts_.nfc ? text::to_nfc(stretch, storage) : stretch, parse_special_,
        [this](std::string_view piece) { parts_.pre_tokenizer.split(piece, scratch_, on_word_); },
        [this](std::int32_t id) { ids_.push_back(id); });
  }

  void encode_word(std::string_view word) {
    if (parts_.ignore_merges) {
      const auto id = parts_.tokens.find_bytes(word, TokenTable::Spelling::kByteLevel);
      if (id) return ids_.push_back(*id);
    }
    parts_.bpe.encode(word, ids_);
  }

  const text::TokenizerParts& parts_;
  const bool parse_special_;
  const text::PreTokenizer::OnWord on_word_;
  text::RegexScratch scratch_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_json(json::read_file(path), path.string());
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& name) {
  return Tokenizer(std::make_unique<State>(State{text::parse_tokenizer(text, name)}));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  // Positions in a word take 32 bits, and repairing may triple the length.
  constexpr std::size_t kLongest = std::numeric_limits<std::uint32_t>::max() / 4;
  if (text.size() > kLongest) {
    throw Error(ErrorCode::kInvalidArgument, "encode: expected a text of at most " +
                                                 std::to_string(kLongest) + " bytes, found " +
                                                 std::to_string(text.size()));
  }
  return Encoder(state_->parts, parse_special).run(text);
}

std::string_view Tokenizer::token_bytes(std::int32_t id, bool show_special) const {
  const TokenTable& tokens = state_->parts.tokens;
  if (id < 0 || id >= tokens.size()) {
    throw Error(ErrorCode::kInvalidArgument, "token id: expected 0 to " +
                                                 std::to_string(tokens.size() - 1) + ", found " +
                                                 std::to_string(id));
  }
  return tokens.special(id) && !show_special ? std::string_view() : tokens.bytes(id);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool show_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) bytes.append(token_bytes(id, show_special));
  return bytes;
}

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  const TokenTable& tokens = state_->parts.tokens;
  if (const auto id = tokens.find_bytes(token, TokenTable::Spelling::kLiteral)) return id;
  std::string storage;
  if (text::repair_utf8(token, storage).data() != token.data()) return std::nullopt;
  const auto bytes = text::bytes_of_written(token);
  return bytes ? tokens.find_bytes(*bytes, TokenTable::Spelling::kByteLevel) : std::nullopt;
}

std::int32_t Tokenizer::vocabulary_size() const noexcept { return state_->parts.tokens.size(); }

std::size_t Tokenizer::memory_bytes() const noexcept {
  const text::TokenizerParts& parts = state_->parts;
  return sizeof(State) + parts.tokens.memory_bytes() + parts.raw_added.memory_bytes() +
         parts.normalized_added.memory_bytes() + parts.pre_tokenizer.memory_bytes() +
         parts.bpe.memory_bytes();
}

}  // namespace deepinfer
