// The byte alphabet of GPT-2: vocabularies are written in JSON, so each byte is written as one
// printable character. The 188 bytes that Latin-1 prints (! to ~, U+00A1 to U+00AC, U+00AE to
// U+00FF) stand for themselves; the other 68 are written, in order, as U+0100, U+0101, ...
// Example: the space 0x20 is the 33rd of the others (after 0x00..0x1F), hence U+0120, "Ġ".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace deepinfer::text {

inline constexpr int kNumBytes = 256;
inline constexpr char32_t kFirstSubstitute = 0x100;
inline constexpr int kNumSubstitutes = 68;

constexpr bool stands_for_itself(int byte) noexcept {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Code point of the alphabet -> its byte, or -1 for a code point below kFirstSubstitute that is
/// not in the alphabet.
constexpr std::array<std::int16_t, kFirstSubstitute + kNumSubstitutes> make_byte_alphabet() {
  std::array<std::int16_t, kFirstSubstitute + kNumSubstitutes> bytes{};
  std::size_t next = kFirstSubstitute;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    const auto code = static_cast<std::size_t>(byte);
    bytes[code] = stands_for_itself(byte) ? static_cast<std::int16_t>(byte) : std::int16_t{-1};
    if (!stands_for_itself(byte)) bytes[next++] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}

inline constexpr auto kByteAlphabet = make_byte_alphabet();

/// The bytes of a token in written form (well-formed UTF-8), or nothing when a character is not of
/// the alphabet: then the token can only be meant literally.
inline std::optional<std::string> bytes_of_written(std::string_view written) {
  std::string bytes;
  while (!written.empty()) {
    const std::size_t length = next_utf8(written).length;
    const char32_t code = code_point(written, length);
    if (code >= kByteAlphabet.size() || kByteAlphabet[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteAlphabet[code]));
    written.remove_prefix(length);
  }
  return bytes;
}

}  // namespace deepinfer::text
