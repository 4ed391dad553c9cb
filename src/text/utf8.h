// UTF-8, one character at a time, by table 3-7 of the Unicode standard ("well-formed UTF-8 byte
// sequences"). What can never become well-formed is cut into maximal subparts, each of which stands
// for one U+FFFD: the practice that section 3.9 recommends and that WHATWG decoders follow.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace deepinfer::text {

/// The bytes of U+FFFD, the replacement character.
inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Utf8Kind {
  kCharacter,   ///< a whole character
  kIllFormed,   ///< a maximal subpart of an ill-formed sequence
  kIncomplete,  ///< the start of a character that more bytes may complete
};

struct Utf8Step {
  std::size_t length;  ///< bytes, at least 1
  Utf8Kind kind;
};

/// What `bytes` (not empty) starts with. kIncomplete is only ever all that is left of `bytes`.
Utf8Step next_utf8(std::string_view bytes) noexcept;

/// The code point of the character that `bytes` starts with; `length` as next_utf8 gave it.
char32_t code_point(std::string_view bytes, std::size_t length) noexcept;

/// Appends the UTF-8 bytes of a code point (not a surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t code);

/// `bytes` itself if it is well-formed, else its repaired copy, which is kept in `storage`.
std::string_view repair_utf8(std::string_view bytes, std::string& storage);

}  // namespace deepinfer::text
