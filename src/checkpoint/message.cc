#include "checkpoint/message.h"

#include <limits>

namespace deepinfer::checkpoint {
namespace {

unsigned byte_at(std::string_view text, std::size_t pos) noexcept {
  return static_cast<unsigned char>(text[pos]);
}

void append_hex(std::string& out, unsigned byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 0xf];
}

/// C0, DEL and C1: terminals act on them. U+2028 and U+2029: some readers break lines there.
bool is_control(std::string_view text, std::size_t pos, std::size_t length) noexcept {
  const unsigned first = byte_at(text, pos);
  if (length == 1) return first < 0x20 || first == 0x7f;
  if (length == 2) return first == 0xc2 && byte_at(text, pos + 1) < 0xa0;
  const std::string_view sequence = text.substr(pos, length);
  return sequence == "\xe2\x80\xa8" || sequence == "\xe2\x80\xa9";
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t pos) noexcept {
  if (pos >= text.size()) return 0;
  const unsigned first = byte_at(text, pos);
  if (first < 0x80) return 1;
  // The second byte has a narrower range after four of the first bytes: that is what excludes
  // overlong forms, surrogates and numbers above U+10FFFF.
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() - pos < length) return 0;
  if (byte_at(text, pos + 1) < low || byte_at(text, pos + 1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte_at(text, pos + i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  std::size_t pos = 0;
  while (pos < text.size()) {
    if (out.size() >= max_bytes) return out + "...";
    const std::size_t length = utf8_length(text, pos);
    const std::size_t step = length == 0 ? 1 : length;
    if (length == 0 || is_control(text, pos, length)) {
      for (std::size_t i = 0; i < step; ++i) append_hex(out, byte_at(text, pos + i));
    } else {
      out += text.substr(pos, length);
    }
    pos += step;
  }
  return out;
}

std::string byte_label(char c) {
  if (c >= ' ' && c <= '~') return std::string("'") + c + "'";
  std::string out;
  append_hex(out, static_cast<unsigned char>(c));
  return "byte 0" + out.substr(1);
}

std::string count_label(std::uint64_t count, std::string_view word) {
  return std::to_string(count) + " " + std::string(word) + (count == 1 ? "" : "s");
}

std::string tensor_label(std::string_view name) { return "tensor \"" + printable(name) + "\""; }

std::string path_label(const std::filesystem::path& path) {
  return printable(path.native(), std::numeric_limits<std::size_t>::max());
}

}  // namespace deepinfer::checkpoint
