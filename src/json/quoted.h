// Names from files in messages.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::json {

/// `name` in quotes, fit for a message of one line: control characters become '?' and what is too
/// long is cut, between characters.
inline std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 64;  // a message is read on a terminal
  const bool is_long = name.size() > kLongest;
  if (is_long) {
    std::size_t length = kLongest;
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xC0U) == 0x80U) --length;
    name = name.substr(0, length);
  }
  std::string out = "\"";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < ' ' || byte == 0x7F ? '?' : c;
  }
  return out + (is_long ? "...\"" : "\"");
}

}  // namespace deepinfer::json
