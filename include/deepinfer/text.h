// From text to token ids and back: byte-level BPE tokenizers, chat templates, sampling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"

namespace deepinfer {

/// A byte-level BPE tokenizer read from a Hugging Face `tokenizer.json`.
///
/// Encoding is thread-safe. Any other kind of tokenizer (unigram, wordpiece), and any normalizer,
/// pre-tokenizer or decoder that is not implemented, is refused by name: Error(kUnsupported).
class DEEPINFER_API Tokenizer {
 public:
  /// Throws Error(kBadInput) for a missing or damaged file.
  static Tokenizer from_file(const std::filesystem::path& path);

  /// The same for the text of a tokenizer.json; `name` is for messages only.
  static Tokenizer from_json(std::string_view text, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Token ids of `text` (UTF-8; invalid bytes are encoded as U+FFFD). Added special tokens such as
  /// "<|im_start|>" are recognised in the text only when `parse_special` is set. Bytes for which
  /// the vocabulary has no token are left out, as the reference implementation does. No
  /// begin-of-text token is added.
  std::vector<std::int32_t> encode(std::string_view text, bool parse_special) const;

  /// The bytes that a token stands for; a special token gives an empty string unless
  /// `show_special`. Bytes of one token need not be valid UTF-8: see Utf8Stream.
  /// Throws Error(kInvalidArgument) for an id out of range.
  std::string_view token_bytes(std::int32_t id, bool show_special = false) const;

  /// The bytes of all tokens joined.
  std::string decode(std::span<const std::int32_t> ids, bool show_special = false) const;

  /// The id of a token by its written form (e.g. "<|im_end|>"), or nothing.
  std::optional<std::int32_t> find(std::string_view token) const;

  /// One more than the largest id.
  std::int32_t vocabulary_size() const noexcept;

  /// Bytes of private memory held by this object (an estimate from container sizes).
  std::size_t memory_bytes() const noexcept;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// The offset of the first byte that is not part of well-formed UTF-8, or nothing.
DEEPINFER_API std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept;

/// Turns a stream of token bytes into a stream of whole UTF-8 characters.
class DEEPINFER_API Utf8Stream {
 public:
  /// Adds bytes; returns what is complete now. Bytes that can never become valid UTF-8 come out as
  /// U+FFFD, one per maximal ill-formed subsequence (as Unicode recommends).
  std::string push(std::string_view bytes);

  /// Ends the stream: an unfinished character becomes one U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

/// One of the chat templates this library knows. There is no template engine: a template text is
/// recognised as a whole.
class DEEPINFER_API ChatTemplate {
 public:
  /// Looks for the template of the model in `directory`: `chat_template.jinja`, or the
  /// `chat_template` member of `tokenizer_config.json`. Throws Error(kUnsupported) when the text is
  /// not one of the known templates, Error(kBadInput) when there is none.
  static ChatTemplate from_directory(const std::filesystem::path& directory);

  /// Recognises a template by its text; throws Error(kUnsupported) otherwise.
  static ChatTemplate from_text(std::string_view text);

  /// A template by the name it is known under, for checkpoints whose own text is another; throws
  /// Error(kInvalidArgument) when there is none of that name.
  static ChatTemplate from_name(std::string_view name);

  /// Names of the known templates, e.g. {"smollm2", "chatml"}.
  static std::vector<std::string_view> known();

  /// The name under which this template is known.
  std::string_view name() const noexcept;

  /// The prompt for a conversation, ending where the assistant's answer starts. Special tokens are
  /// in their written form: encode the result with `parse_special` set.
  std::string apply(std::span<const ChatMessage> messages) const;

 private:
  explicit ChatTemplate(std::size_t index) noexcept : index_(index) {}
  std::size_t index_;
};

/// How the next token is chosen. temperature 0 is greedy (ties: lowest id).
struct SamplingOptions {
  float temperature = 0.0F;
  std::int32_t top_k = 0;  ///< 0: no limit
  float top_p = 1.0F;      ///< 1: no limit
  std::uint64_t seed = 0;
};

/// Chooses tokens. The same seed and logits give the same tokens on every machine.
class DEEPINFER_API Sampler {
 public:
  /// Throws Error(kInvalidArgument) for values out of range.
  explicit Sampler(const SamplingOptions& options);

  /// The next token for `logits` [vocabulary]; the logits are finite.
  std::int32_t sample(std::span<const float> logits);

 private:
  std::int32_t choose(std::span<const float> logits);

  SamplingOptions options_;
  std::uint64_t state_;
  std::vector<std::int32_t> order_;  // scratch
  std::vector<float> weights_;       // scratch
};

}  // namespace deepinfer
