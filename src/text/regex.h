// A compiled regular expression over UTF-8 with Unicode properties (PCRE2, with JIT where there is
// one). The tokenizers that we read were written for Oniguruma; translate_pattern() carries over
// the part of the language that both agree on and refuses the rest.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace deepinfer::text {

/// `pattern` in PCRE2's language with the meaning it has in Oniguruma's (Ruby syntax). Throws
/// Error(kUnsupported), with `where` in front, for anything that the two may read differently.
std::string translate_pattern(std::string_view pattern, const std::string& where);

/// What one thread needs to match; any number of expressions can share it, one after the other.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  struct Free {
    void operator()(pcre2_real_match_data_8* data) const noexcept;
  };
  std::unique_ptr<pcre2_real_match_data_8, Free> data_;
};

class Regex {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  /// Throws Error(kBadInput), with `where` in front, if the pattern does not compile.
  static Regex from_pattern(std::string_view pattern, const std::string& where);

  /// Matches exactly this text.
  static Regex from_literal(std::string_view text, const std::string& where);

  /// The first match in `text` (well-formed UTF-8) that begins at `start` or later. Thread-safe.
  /// Throws Error(kUnsupported) when the match takes more steps than PCRE2 allows.
  std::optional<Match> find(std::string_view text, std::size_t start, RegexScratch& scratch) const;

  std::size_t memory_bytes() const noexcept;

 private:
  Regex(std::string_view pattern, unsigned options, const std::string& where);

  struct Free {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace deepinfer::text
