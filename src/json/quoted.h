// Names from files in messages.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::json {

/// Bytes at the front of `text` that a message must not show as they are: C0, DEL, C1 (terminals
/// act on them), and U+2028 and U+2029 (some readers break lines there). 0: none. `text` is not
/// empty.
inline std::size_t control_length(std::string_view text) noexcept {
  const auto byte = static_cast<unsigned char>(text.front());
  if (byte < ' ' || byte == 0x7F) return 1;
  if (byte == 0xC2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xA0) return 2;
  return text.starts_with("\xE2\x80\xA8") || text.starts_with("\xE2\x80\xA9") ? 3 : 0;
}

/// `text`, which is UTF-8, fit for a message of one line: control characters become '?' and what is
/// too long is cut, between characters.
inline std::string shortened(std::string_view text) {
  constexpr std::size_t kLongest = 64;  // a message is read on a terminal
  const bool is_long = text.size() > kLongest;
  if (is_long) {
    std::size_t length = kLongest;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
    text = text.substr(0, length);
  }
  std::string out;
  while (!text.empty()) {
    const std::size_t control = control_length(text);
    out += control > 0 ? '?' : text.front();
    text.remove_prefix(control > 0 ? control : 1);
  }
  return out + (is_long ? "..." : "");
}

inline std::string in_quotes(std::string_view name) { return '"' + shortened(name) + '"'; }

}  // namespace deepinfer::json
