// From Oniguruma's regular expressions (Ruby syntax) to PCRE2's: one pass over the pattern that
// copies what means the same in both, rewrites what can be said in PCRE2, refuses the rest. Where
// they differ:
//   \s          PCRE2 counts U+180E as space, Oniguruma takes the White_Space property
//   \p{Han}     PCRE2 means the script extensions, Oniguruma the script
//   \h \w \b    hexadecimal digit or blank; other sets of word characters       (refused)
//   ^ $ && [[   lines or whole text; class intersection and nesting or literals  (refused)
//   (?m) {1,2}+ dot matches newline or not; repeated or possessive               (refused)
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "deepinfer/error.h"
#include "json/quoted.h"
#include "text/regex.h"

namespace deepinfer::text {
namespace {

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    while (i_ < pattern_.size()) step();
    return out_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kUnsupported, where_ + ": the construct " + json::in_quotes(what) +
                                             " of regular expressions is not supported");
  }

  bool at(std::string_view text) const { return pattern_.substr(i_).starts_with(text); }

  void copy(std::size_t length) {
    out_.append(pattern_.substr(i_, length));
    i_ += length;
  }

  void step() {
    const char c = pattern_[i_];
    if (c == '\\') return escape();
    if (in_class_) return class_character(c);
    if (c == '(') return group();
    if (c == '^' || c == '$') refuse(pattern_.substr(i_, 1));
    if (c == '}' && pattern_.substr(i_ + 1).starts_with('+')) refuse("}+");
    if (c == '[') {
      in_class_ = true;
      copy(at("[^") ? 2 : 1);
      if (at("]")) refuse("[]");
      return;
    }
    copy(1);
  }

  void class_character(char c) {
    if (c == '[' || at("&&")) refuse(pattern_.substr(i_, 2));
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    constexpr std::array<std::string_view, 7> kGroups = {"(?:",  "(?i:", "(?=", "(?!",
                                                         "(?<=", "(?<!", "(?>"};
    if (!at("(?")) return copy(1);
    for (const std::string_view group : kGroups) {
      if (at(group)) return copy(group.size());
    }
    refuse(pattern_.substr(i_, 3));
  }

  void escape() {
    const std::string_view pair = pattern_.substr(i_, 2);
    if (pair.size() < 2) refuse(pair);
    const char c = pair[1];
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? "\\p{wspace}" : "\\P{wspace}";
      i_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'x') {
      code_point_escape("\\x{", 2);
    } else if (c == 'u') {
      code_point_escape("", 4);
    } else {
      constexpr std::string_view kSame = "rntfdD";
      const bool punctuation = c > ' ' && c < 0x7F && !is_letter_or_digit(c);
      if (!punctuation && kSame.find(c) == std::string_view::npos) refuse(pair);
      copy(2);
    }
  }

  static constexpr bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  }

  // \p{L}, \p{Lu}: general categories. \p{Han}: a script. Other properties have other names.
  void property() {
    const std::size_t end = pattern_.find('}', i_);
    if (pattern_.substr(i_ + 2, 1) != "{" || end == std::string_view::npos)
      refuse(pattern_.substr(i_, 2));
    const std::string_view name = pattern_.substr(i_ + 3, end - i_ - 3);
    for (const char c : name) {
      if (!is_letter_or_digit(c)) refuse(pattern_.substr(i_, end + 1 - i_));
    }
    out_.append(pattern_.substr(i_, 3)).append(name.size() <= 2 ? "" : "sc:").append(name) += '}';
    i_ = end + 1;
  }

  // \x41, \x{2603}, \u2603 -> \x{...}. `braced` is how the form with braces starts, if there is
  // one.
  void code_point_escape(std::string_view braced, std::size_t num_digits) {
    std::string_view digits = pattern_.substr(i_ + 2, num_digits);
    std::size_t length = 2 + num_digits;
    if (!braced.empty() && at(braced)) {
      const std::size_t end = pattern_.find('}', i_);
      if (end == std::string_view::npos) refuse(braced);
      digits = pattern_.substr(i_ + 3, end - i_ - 3);
      length = end + 1 - i_;
      num_digits = digits.size();
    }
    constexpr std::string_view kHex = "0123456789abcdefABCDEF";
    if (digits.empty() || digits.size() != num_digits ||
        digits.find_first_not_of(kHex) != std::string_view::npos) {
      refuse(pattern_.substr(i_, length));
    }
    out_.append("\\x{").append(digits) += '}';
    i_ += length;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::size_t i_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string translate_pattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).run();
}

}  // namespace deepinfer::text
