#include "checkpoint/json_scanner.h"

#include <set>

#include "checkpoint/message.h"
#include "deepinfer/error.h"

namespace deepinfer::checkpoint {
namespace {

/// Deeper nesting than any index has; the scanner recurses, so this bounds the stack.
constexpr int kMaxDepth = 32;

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3f));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | (code_point >> 6));
    out += tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | (code_point >> 12));
    out += tail(6);
    out += tail(0);
  } else {
    out += static_cast<char>(0xf0 | (code_point >> 18));
    out += tail(12);
    out += tail(6);
    out += tail(0);
  }
}

}  // namespace

void JsonScanner::fail(const std::string& fault) const {
  std::string message = where_ + " byte " + std::to_string(pos_) + ": ";
  if (!subject_.empty()) message += subject_ + ": ";
  throw Error(ErrorCode::kBadInput, message + fault);
}

std::string JsonScanner::found() const {
  if (pos_ >= text_.size()) return "end of text found";
  return byte_label(text_[pos_]) + " found";
}

void JsonScanner::skip_space() noexcept {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
    ++pos_;
  }
}

bool JsonScanner::accept(char c) noexcept {
  skip_space();
  if (pos_ >= text_.size() || text_[pos_] != c) return false;
  ++pos_;
  return true;
}

void JsonScanner::expect(char c) {
  if (!accept(c)) fail(std::string("'") + c + "' expected, " + found());
}

void JsonScanner::expect_end() {
  skip_space();
  if (pos_ < text_.size()) fail("end of text expected, " + found());
}

std::string JsonScanner::read_string() {
  if (!accept('"')) fail("string expected, " + found());
  std::string out;
  for (;;) {
    if (pos_ >= text_.size()) fail("closing '\"' expected, " + found());
    const char c = text_[pos_];
    if (c == '"') {
      ++pos_;
      return out;
    }
    if (c == '\\') {
      ++pos_;
      read_escape(out);
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20) {
      fail("escaped control character expected in a string, " + found());
    }
    const std::size_t length = utf8_length(text_, pos_);
    if (length == 0) fail("valid UTF-8 expected, " + found());
    out.append(text_, pos_, length);
    pos_ += length;
  }
}

void JsonScanner::read_escape(std::string& out) {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t letter = pos_ < text_.size() ? kLetters.find(text_[pos_]) : kLetters.npos;
  if (letter != kLetters.npos) {
    out += kMeanings[letter];
    ++pos_;
    return;
  }
  if (peek() != 'u') fail("escape character expected after '\\', " + found());
  ++pos_;
  std::uint32_t code_point = read_hex4();
  if (code_point >= 0xd800 && code_point < 0xdc00) {
    // Above U+FFFF: two escapes, 10 bits each. \ud83d\ude00 -> U+1F600.
    const bool escape_follows = text_.substr(pos_, 2) == "\\u";
    if (!escape_follows) fail("low surrogate expected after a high one, " + found());
    pos_ += 2;
    const std::uint32_t low = read_hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("low surrogate expected after a high one");
    code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
  } else if (code_point >= 0xdc00 && code_point < 0xe000) {
    fail("high surrogate expected before a low one");
  }
  append_utf8(out, code_point);
}

std::uint32_t JsonScanner::read_hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek();
    std::uint32_t digit = 0;
    if (is_digit(c)) {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<std::uint32_t>(c - 'A' + 10);
    } else {
      fail("four hexadecimal digits expected after '\\u', " + found());
    }
    value = value * 16 + digit;
    ++pos_;
  }
  return value;
}

std::uint64_t JsonScanner::read_size() {
  const auto refuse = [&](const std::string& what) {
    fail("integer from 0 to " + std::to_string(kMaxSize) + " expected, " + what);
  };
  skip_space();
  if (!is_digit(peek())) refuse(found());
  if (peek() == '0' && pos_ + 1 < text_.size() && is_digit(text_[pos_ + 1])) {
    refuse("a leading zero found");
  }
  std::uint64_t value = 0;
  while (is_digit(peek())) {
    value = value * 10 + static_cast<std::uint64_t>(peek() - '0');
    if (value > kMaxSize) refuse("a larger number found");
    ++pos_;
  }
  if (peek() == '.' || peek() == 'e' || peek() == 'E') refuse(found());
  return value;
}

void JsonScanner::skip_digits() {
  if (!is_digit(peek())) fail("number expected, " + found());
  while (is_digit(peek())) ++pos_;
}

void JsonScanner::skip_number() {
  if (peek() == '-') ++pos_;
  if (peek() == '0') {
    ++pos_;
    if (is_digit(peek())) fail("number without leading zero expected, " + found());
  } else {
    skip_digits();
  }
  if (peek() == '.') {
    ++pos_;
    skip_digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    ++pos_;
    if (peek() == '+' || peek() == '-') ++pos_;
    skip_digits();
  }
}

void JsonScanner::skip_value(int depth) {
  if (depth > kMaxDepth) fail("at most " + std::to_string(kMaxDepth) + " nested values expected");
  skip_space();
  const char c = peek();
  if (c == '{') {
    std::set<std::string> keys;
    read_object([&](std::string key) {
      const auto [place, is_new] = keys.insert(std::move(key));
      if (!is_new) fail("member \"" + printable(*place) + "\" appears twice");
      skip_value(depth + 1);
    });
  } else if (c == '[') {
    read_array([&] { skip_value(depth + 1); });
  } else if (c == '"') {
    read_string();
  } else if (c == '-' || is_digit(c)) {
    skip_number();
  } else {
    for (const std::string_view literal : {"true", "false", "null"}) {
      if (text_.substr(pos_).starts_with(literal)) {
        pos_ += literal.size();
        return;
      }
    }
    fail("value expected, " + found());
  }
}

}  // namespace deepinfer::checkpoint
