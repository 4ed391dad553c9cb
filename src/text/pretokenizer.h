// Pre-tokenization: cuts text into words, which byte pair encoding never joins. Steps follow each
// other; each cuts the pieces that the one before it left.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace deepinfer::text {

/// How GPT-2 cuts text into words.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  using OnWord = std::function<void(std::string_view word)>;

  /// Cuts around each match of `regex`; the matches themselves are kept or dropped.
  void add_split(Regex regex, bool keep_matches);

  /// Puts a space in front of each piece that does not start with one.
  void add_prefix_space();

  /// Calls `on_word` with each word of `text` (well-formed UTF-8) in order; a word does not outlive
  /// the call. Thread-safe with a scratch for each thread.
  void split(std::string_view text, RegexScratch& scratch, const OnWord& on_word) const {
    run(0, text, scratch, on_word);
  }

  std::size_t num_steps() const noexcept { return steps_.size(); }
  std::size_t memory_bytes() const noexcept;

 private:
  struct Step {
    std::optional<Regex> regex;  // none: put a space in front
    bool keep_matches = true;
  };

  void run(std::size_t step, std::string_view piece, RegexScratch& scratch,
           const OnWord& on_word) const;
  void cut(std::size_t step, std::string_view piece, RegexScratch& scratch,
           const OnWord& on_word) const;

  std::vector<Step> steps_;
};

}  // namespace deepinfer::text
