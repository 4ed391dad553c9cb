// Well-formedness of UTF-8, repair of text that is not, and the stream that holds back unfinished
// characters.
#include "text/utf8.h"

#include <cstdint>
#include <cstring>

#include "deepinfer/text.h"

namespace deepinfer {
namespace text {
namespace {

// A row of table 3-7: how many bytes follow a first byte, and the range of the second byte. The
// narrowed ranges exclude overlong forms (E0, F0), surrogates (ED) and values above U+10FFFF (F4).
struct Lead {
  std::uint8_t num_following;
  std::uint8_t low;
  std::uint8_t high;
};

constexpr Lead lead_of(std::uint8_t byte) noexcept {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

std::uint8_t byte_at(std::string_view bytes, std::size_t i) noexcept {
  return static_cast<std::uint8_t>(bytes[i]);
}

// Length of the ASCII run at the start: eight bytes at a time, as most text is ASCII.
std::size_t ascii_length(std::string_view bytes) noexcept {
  constexpr std::uint64_t kHighBits = 0x8080808080808080U;
  std::size_t i = 0;
  for (; i + sizeof(std::uint64_t) <= bytes.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    if ((word & kHighBits) != 0) break;
  }
  while (i < bytes.size() && byte_at(bytes, i) < 0x80) ++i;
  return i;
}

// Appends the whole characters of `bytes`, with U+FFFD for what is ill-formed. Returns the length
// of the unfinished character at the end, which is not appended.
std::size_t append_repaired(std::string& out, std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const std::size_t ascii = ascii_length(bytes.substr(i));
    out.append(bytes.substr(i, ascii));
    i += ascii;
    if (i == bytes.size()) break;
    const Utf8Step step = next_utf8(bytes.substr(i));
    if (step.kind == Utf8Kind::kIncomplete) return step.length;
    out.append(step.kind == Utf8Kind::kCharacter ? bytes.substr(i, step.length) : kReplacement);
    i += step.length;
  }
  return 0;
}

bool is_well_formed(std::string_view bytes) noexcept {
  std::size_t i = 0;
  while (true) {
    i += ascii_length(bytes.substr(i));
    if (i == bytes.size()) return true;
    const Utf8Step step = next_utf8(bytes.substr(i));
    if (step.kind != Utf8Kind::kCharacter) return false;
    i += step.length;
  }
}

}  // namespace

Utf8Step next_utf8(std::string_view bytes) noexcept {
  const std::uint8_t first = byte_at(bytes, 0);
  if (first < 0x80) return {1, Utf8Kind::kCharacter};
  const Lead lead = lead_of(first);
  if (lead.num_following == 0) return {1, Utf8Kind::kIllFormed};
  std::uint8_t low = lead.low;
  std::uint8_t high = lead.high;
  for (std::size_t i = 1; i <= lead.num_following; ++i) {
    if (i == bytes.size()) return {i, Utf8Kind::kIncomplete};
    if (byte_at(bytes, i) < low || byte_at(bytes, i) > high) return {i, Utf8Kind::kIllFormed};
    low = 0x80;
    high = 0xBF;
  }
  return {std::size_t{1} + lead.num_following, Utf8Kind::kCharacter};
}

char32_t code_point(std::string_view bytes, std::size_t length) noexcept {
  const char32_t first = byte_at(bytes, 0);
  if (length == 1) return first;
  // The first byte of a character of 2, 3, 4 bytes carries 5, 4, 3 bits; each other byte 6.
  char32_t code = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) code = (code << 6) | (byte_at(bytes, i) & 0x3FU);
  return code;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
    return;
  }
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string_view repair_utf8(std::string_view bytes, std::string& storage) {
  if (is_well_formed(bytes)) return bytes;
  storage.clear();
  if (append_repaired(storage, bytes) != 0) storage.append(kReplacement);
  return storage;
}

}  // namespace text

std::optional<std::size_t> first_invalid_utf8(std::string_view bytes) noexcept {
  for (std::size_t at = 0; at < bytes.size();) {
    const text::Utf8Step step = text::next_utf8(bytes.substr(at));
    if (step.kind != text::Utf8Kind::kCharacter) return at;
    at += step.length;
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  // At most three bytes are ever pending, so joining them costs no more than the new bytes.
  pending_.append(bytes);
  std::string out;
  const std::size_t unfinished = text::append_repaired(out, pending_);
  pending_.erase(0, pending_.size() - unfinished);
  return out;
}

std::string Utf8Stream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return std::string(unfinished ? text::kReplacement : std::string_view());
}

}  // namespace deepinfer
