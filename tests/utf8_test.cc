// UTF-8: ill-formed sequences as the Unicode standard has them, and streams that may be cut
// anywhere.
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/text.h"
#include "random_data.h"

namespace deepinfer {
namespace {

constexpr std::string_view kR = text::kReplacement;

// The bytes after each other, and U+FFFD for each "?".
std::string with_replacements(std::string_view pattern) {
  std::string out;
  for (const char c : pattern) c == '?' ? out.append(kR) : out.append(1, c);
  return out;
}

std::string decode_at_once(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out + stream.finish();
}

TEST(utf8_test, ill_formed_bytes_become_one_replacement_per_maximal_subpart) {
  struct Case {
    std::string_view bytes;
    std::string_view expected;
  };
  const std::vector<Case> cases = {
      {"\xE2\x82\x41", "?A"},
      {"\xF0\x80\x80", "???"},
      {"\x80", "?"},
      {"\xBF\xBF", "??"},
      {"\xC0\x80", "??"},
      {"\xC1\xBF", "??"},
      {"\xE0\x9F\xBF", "???"},
      {"\xED\xA0\x80", "???"},
      {"\xF4\x90\x80\x80", "????"},
      {"\xF5\x80", "??"},
      {"\xFF\xFE", "??"},
      {"\xC3", "?"},
      {"\xE2\x82", "?"},
      {"\xF0\x9F\x98", "?"},
      {"\xF0\x9F\x98\xF0\x9F\x98", "??"},
      {"\xC3\xC3\xA9", "?\xC3\xA9"},
      // Tables 3-8 to 3-11 of the Unicode standard, chapter 3.9.
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "????????A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "????????A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "?????A??B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "????A"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(decode_at_once(c.bytes), with_replacements(c.expected)) << c.expected;
    std::string storage;
    EXPECT_EQ(text::repair_utf8(c.bytes, storage), with_replacements(c.expected)) << c.expected;
  }
}

TEST(utf8_test, every_character_passes_and_comes_back) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    text::append_utf8(bytes, code);
    const text::Utf8Step step = text::next_utf8(bytes);
    ASSERT_EQ(step.kind, text::Utf8Kind::kCharacter) << bytes;
    ASSERT_EQ(step.length, bytes.size()) << bytes;
    ASSERT_TRUE(text::code_point(bytes, step.length) == code) << bytes;
  }
}

TEST(utf8_test, well_formed_text_is_not_copied) {
  const std::string_view text = "a longer text of ASCII, then \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  std::string storage;
  EXPECT_EQ(text::repair_utf8(text, storage).data(), text.data());
}

TEST(utf8_stream_test, comes_out_as_soon_as_complete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80"
                        "b"),
            "\xF0\x9F\x98\x80"
            "b");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("A"), with_replacements("?A"));
  EXPECT_EQ(stream.push("\xC3"), "");
  EXPECT_EQ(stream.finish(), kR);
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push("\xC3\xA9"), "\xC3\xA9");
}

// One byte of each range that table 3-7 tells apart.
constexpr std::string_view kBytes =
    "\x41\x7F\x80\x8F\x90\x9F\xA0\xBF\xC1\xC2\xDF\xE0\xE1\xED\xEE\xF0\xF1\xF4\xF5\xFF";

TEST(utf8_stream_test, any_cut_of_four_bytes_gives_the_same) {
  std::string bytes(4, ' ');
  for (std::size_t i = 0; i < kBytes.size() * kBytes.size() * kBytes.size() * kBytes.size(); ++i) {
    std::size_t digits = i;
    for (char& c : bytes) {
      c = kBytes[digits % kBytes.size()];
      digits /= kBytes.size();
    }
    const std::string expected = decode_at_once(bytes);
    for (std::size_t cuts = 1; cuts < 8; ++cuts) {
      Utf8Stream stream;
      std::string out;
      std::size_t begin = 0;
      for (std::size_t end = 1; end <= 4; ++end) {
        if (end < 4 && (cuts >> (end - 1) & 1) == 0) continue;
        out += stream.push(std::string_view(bytes).substr(begin, end - begin));
        begin = end;
      }
      ASSERT_EQ(out + stream.finish(), expected) << "string " << i << ", cuts " << cuts;
    }
  }
}

TEST(utf8_stream_test, any_cut_of_random_bytes_gives_the_same) {
  test::Random random(11);
  for (int trial = 0; trial < 5000; ++trial) {
    std::string bytes;
    for (std::uint64_t i = random.below(40); i > 0; --i) {
      bytes += random.below(2) == 0 ? kBytes[random.below(kBytes.size())]
                                    : static_cast<char>(random.below(256));
    }
    Utf8Stream stream;
    std::string out;
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t length = random.below(std::min<std::size_t>(rest.size(), 6) + 1);
      out += stream.push(rest.substr(0, length));
      rest.remove_prefix(length);
    }
    out += stream.finish();
    std::string storage;
    ASSERT_EQ(out, decode_at_once(bytes));
    ASSERT_EQ(out, text::repair_utf8(bytes, storage));
    ASSERT_EQ(text::repair_utf8(out, storage).data(), out.data()) << "still ill-formed";
  }
}

}  // namespace
}  // namespace deepinfer
