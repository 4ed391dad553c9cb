// What the safetensors parser must refuse, and with which words.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "deepinfer/error.h"
#include "safetensors_builder.h"

namespace deepinfer::checkpoint {
namespace {

using testing::raw_safetensors;
using testing::SafetensorsBuilder;
using Bytes = std::vector<std::byte>;

Bytes zeros(std::size_t count) { return Bytes(count); }

Safetensors parse(const Bytes& file) { return parse_safetensors(file, "m.safetensors"); }

/// The message of the refusal; a failed test when the file is accepted.
std::string refusal(const Bytes& file) {
  try {
    parse(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

/// One line of valid text, of a length that a terminal can show, that opens with the file.
void expect_good_form(const std::string& message) {
  EXPECT_EQ(message.find_first_of("\n\r\t\x1b"), std::string::npos) << message;
  EXPECT_TRUE(message.starts_with("m.safetensors: ")) << message;
  EXPECT_LT(message.size(), 1000u);
}

struct Refused {
  const char* name;
  std::string header;
  std::size_t data_bytes;
  const char* words;  ///< a part of the message
};

std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.name; }

class RefusedHeader : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedHeader, is_refused_in_one_line_that_says_why) {
  const Refused& refused = GetParam();
  const std::string message = refusal(raw_safetensors(refused.header, zeros(refused.data_bytes)));
  EXPECT_NE(message.find(refused.words), std::string::npos) << message;
  expect_good_form(message);
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":)" + entry(dtype, shape, offsets) + "}";
}

std::string two(const std::string& a_offsets, const std::string& b_offsets) {
  return R"({"a":)" + entry("U8", "[4]", a_offsets) + R"(,"b":)" + entry("U8", "[4]", b_offsets) +
         "}";
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

const std::string kU8 = one("U8", "[4]", "[0,4]");

std::string meta(const std::string& value) { return R"({"__metadata__":)" + value + "}"; }

std::string named(const std::string& json_name) {
  return "{" + json_name + ":" + entry("U8", "[4]", "[0,4]") + "}";
}

const Refused kRefused[] = {
    // The text as a whole.
    {"header_empty", "", 0, "header of at least 2 bytes expected, 0 given"},
    {"first_byte_space", " {}", 0, "'{' expected, ' ' found"},
    {"first_byte_array", "[]", 0, "'{' expected, '[' found"},
    {"first_byte_bom", "\xef\xbb\xbf{}", 0, "'{' expected, byte 0xef found"},
    {"tab_after_brace", "{}\t", 0, "only spaces expected after the header, byte 0x09 found"},
    {"newline_after_brace", "{} \n", 0, "only spaces expected"},
    {"nul_after_brace", std::string("{}\0", 3), 0, "only spaces expected"},
    {"second_object", "{}{}", 0, "only spaces expected"},
    {"unclosed", "{ ", 0, "end of text found"},
    {"unclosed_entry", R"({"w":{"dtype":"U8")", 0, "'}' expected, end of text found"},
    {"comma_at_end", R"({"w":)" + entry("U8", "[4]", "[0,4]") + ",}", 4, "string expected"},
    {"no_colon", R"({"w" 1})", 0, "':' expected, '1' found"},
    {"comment", R"({/* */})", 0, "string expected, '/' found"},
    // Strings.
    {"invalid_utf8", named("\"w\xff\""), 4, "valid UTF-8 expected, byte 0xff found"},
    {"overlong_utf8", named("\"\xc0\x80\""), 4, "valid UTF-8 expected"},
    {"overlong_utf8_3", named("\"\xe0\x9f\xbf\""), 4, "valid UTF-8 expected"},
    {"overlong_utf8_4", named("\"\xf0\x8f\xbf\xbf\""), 4, "valid UTF-8 expected"},
    {"surrogate_in_utf8", named("\"\xed\xa0\x80\""), 4, "valid UTF-8 expected"},
    {"utf8_above_10ffff", named("\"\xf4\x90\x80\x80\""), 4, "valid UTF-8 expected"},
    {"cut_utf8", named("\"\xe2\x82\""), 4, "valid UTF-8 expected"},
    {"control_character", named("\"w\n\""), 4, "control character"},
    {"unknown_escape", named(R"("\x41")"), 4, "escape"},
    {"short_unicode_escape", named(R"("\u12")"), 4, "four hexadecimal digits expected"},
    {"lone_high_surrogate", named(R"("\ud83d")"), 4, "surrogate"},
    {"lone_low_surrogate", named(R"("\ude00")"), 4, "surrogate"},
    {"high_surrogate_then_letter", named(R"("\ud83d\u0041")"), 4, "surrogate"},
    {"high_surrogate_then_above", named(R"("\ud83d\ue000")"), 4, "surrogate"},
    // Names that appear twice.
    {"tensor_twice",
     R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"a":)" + entry("U8", "[4]", "[4,8]") + "}", 8,
     "tensor \"a\" appears twice"},
    {"tensor_twice_by_escape",
     R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"\u0061":)" + entry("U8", "[4]", "[4,8]") + "}",
     8, "tensor \"a\" appears twice"},
    {"metadata_twice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ appears twice"},
    {"metadata_key_twice", meta(R"({"k":"1","k":"2"})"), 0, "\"k\" appears twice"},
    {"dtype_twice", R"({"w":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
     "\"dtype\" appears twice"},
    {"shape_twice", R"({"w":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4,
     "tensor \"w\": member \"shape\" appears twice"},
    {"offsets_twice",
     R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4]}})", 4,
     "\"data_offsets\" appears twice"},
    // Members.
    {"unknown_member", R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}})", 4,
     "tensor \"w\": member \"dtype\", \"shape\" or \"data_offsets\" expected, \"strides\" found"},
    {"no_dtype", R"({"w":{"shape":[4],"data_offsets":[0,4]}})", 4, "\"dtype\" is missing"},
    {"no_shape", R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", 4, "\"shape\" is missing"},
    {"no_offsets", R"({"w":{"dtype":"U8","shape":[4]}})", 4, "\"data_offsets\" is missing"},
    {"entry_not_object", R"({"w":[]})", 0, "tensor \"w\": '{' expected, '[' found"},
    {"dtype_not_string", R"({"w":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4,
     "string expected, '8' found"},
    {"dtype_unknown", one("F3", "[4]", "[0,4]"), 4, "tensor \"w\": data type \"F3\" is not known"},
    {"dtype_lower_case", one("u8", "[4]", "[0,4]"), 4, "data type \"u8\" is not known"},
    {"shape_not_array", one("U8", "4", "[0,4]"), 4, "'[' expected, '4' found"},
    {"offsets_one", one("U8", "[4]", "[4]"), 4, "two data_offsets expected, 1 found"},
    {"offsets_three", one("U8", "[4]", "[0,4,4]"), 4, "two data_offsets expected, more found"},
    {"metadata_number", meta(R"({"k":1})"), 0, "__metadata__: string expected, '1' found"},
    {"metadata_nested", meta(R"({"k":{}})"), 0, "string expected, '{' found"},
    {"metadata_null", meta("null"), 0, "'{' expected, 'n' found"},
    // Integers.
    {"shape_negative", one("U8", "[-4]", "[0,4]"), 4, "tensor \"w\": integer from 0 to"},
    {"shape_minus_zero", one("U8", "[-0]", "[0,0]"), 0, "'-' found"},
    {"shape_fraction", one("U8", "[4.0]", "[0,4]"), 4, "'.' found"},
    {"shape_exponent", one("U8", "[4e0]", "[0,4]"), 4, "'e' found"},
    {"shape_leading_zero", one("U8", "[04]", "[0,4]"), 4, "leading zero"},
    {"shape_plus", one("U8", "[+4]", "[0,4]"), 4, "'+' found"},
    {"shape_string", one("U8", R"(["4"])", "[0,4]"), 4, "'\"' found"},
    {"shape_2_to_48", one("U8", "[281474976710656]", "[0,4]"), 4, "a larger number found"},
    {"shape_2_to_64", one("U8", "[18446744073709551620]", "[0,4]"), 4, "a larger number found"},
    {"offset_2_to_48", one("U8", "[4]", "[0,281474976710656]"), 4, "a larger number found"},
    {"offset_negative", one("U8", "[4]", "[-1,3]"), 4, "'-' found"},
    // Sizes.
    {"product_overflows", one("U8", "[4294967296,4294967296]", "[0,0]"), 0, "overflows"},
    {"bits_overflow", one("F64", "[274877906944,1048576]", "[0,0]"), 0, "overflows"},
    {"overflow_hidden_by_zero_first", one("U8", "[0,140737488355328,140737488355328]", "[0,0]"), 0,
     "overflows"},
    {"overflow_hidden_by_zero_last", one("U8", "[140737488355328,140737488355328,0]", "[0,0]"), 0,
     "overflows"},
    {"f6_half_byte", one("F6_E2M3", "[2]", "[0,2]"), 2, "12 bits are not whole bytes"},
    {"size_too_small", one("F32", "[4]", "[0,15]"), 15, "16 bytes expected, 15 given"},
    {"size_too_large", one("F32", "[4]", "[0,17]"), 17, "16 bytes expected, 17 given"},
    {"scalar_without_data", one("F32", "[]", "[0,0]"), 0, "4 bytes expected, 0 given"},
    {"end_before_begin", one("U8", "[4]", "[4,0]"), 4, "end before they begin"},
    // Ranges.
    {"first_not_at_zero", one("U8", "[4]", "[4,8]"), 8, "begin at byte 0 expected, 4 found"},
    {"hole", two("[0,4]", "[6,10]"), 10, "tensor \"b\": begin at byte 4 expected, 6 found (a hole"},
    {"overlap", two("[0,4]", "[2,6]"), 6,
     "tensor \"b\": begin at byte 4 expected, 2 found (overlaps tensor \"a\")"},
    {"same_range", two("[0,4]", "[0,4]"), 4, "overlaps tensor"},
    {"empty_tensor_inside_another",
     R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"z":)" + entry("U8", "[0]", "[2,2]") + "}", 4,
     "tensor \"z\": begin at byte 4 expected, 2 found (overlaps"},
    {"trailing_bytes", kU8, 7, "4 data bytes expected, 7 found (3 bytes after the last tensor)"},
    {"data_without_tensors", "{}", 1, "0 data bytes expected, 1 found"},
    // Names that would spoil a message.
    {"newline_in_name", R"({"a\nb":1})", 0, R"(tensor "a\x0ab")"},
    {"escape_code_in_name", R"({"\u001b[2J\u009b":1})", 0, R"(tensor "\x1b[2J\xc2\x9b")"},
    {"long_name", R"({")" + std::string(100'000, 'x') + R"(":1})", 0, "xxx...\""},
    {"long_shape", one("U8", "[1" + repeat(",1", 2000) + "]", "[0,0]"), 0,
     "1, 1, ... with data_offsets"},
};

INSTANTIATE_TEST_SUITE_P(safetensors_refusal, RefusedHeader, ::testing::ValuesIn(kRefused),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(safetensors_refusal, files_shorter_than_the_length_field_are_refused) {
  for (std::size_t size = 0; size < 8; ++size) {
    const std::string message = refusal(zeros(size));
    EXPECT_NE(message.find("at least 8 bytes expected, " + std::to_string(size) + " found"),
              std::string::npos)
        << message;
  }
}

TEST(safetensors_refusal, header_length_above_the_limit_is_refused) {
  for (std::uint64_t size : {std::uint64_t{100'000'001}, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    const std::string message = refusal(raw_safetensors("{}", {}, size));
    EXPECT_NE(message.find("at most 100000000 bytes expected, " + std::to_string(size) + " found"),
              std::string::npos)
        << message;
  }
}

TEST(safetensors_refusal, header_past_the_end_of_the_file_is_refused) {
  const std::string message = refusal(raw_safetensors("{}", {}, 100'000'000));
  EXPECT_NE(message.find("header of 100000000 bytes expected, 2 found (99999998 bytes missing"),
            std::string::npos)
      << message;
}

TEST(safetensors_refusal, header_length_that_cuts_the_header_is_refused) {
  const std::string message = refusal(raw_safetensors(kU8, zeros(4), kU8.size() - 1));
  EXPECT_NE(message.find("'}' expected, end of text found"), std::string::npos) << message;
}

TEST(safetensors_refusal, every_cut_of_a_good_file_is_refused) {
  const Bytes file = SafetensorsBuilder()
                         .add("a", DType::kF32, {3}, std::vector<float>{1, 2, 3})
                         .add("b", DType::kU8, {2, 2}, zeros(4))
                         .metadata("format", "pt")
                         .to_bytes();
  ASSERT_EQ(parse(file).tensors.size(), 2u);
  for (std::size_t size = 0; size < file.size(); ++size) {
    expect_good_form(refusal(Bytes(file.begin(), file.begin() + static_cast<long>(size))));
  }
}

TEST(safetensors_refusal, case_069_cut_file_says_how_much_is_missing_and_where) {
  SafetensorsBuilder builder;
  builder.add("a", DType::kU8, {5000}, zeros(5000)).add("b", DType::kU8, {3000}, zeros(3000));
  builder.add("empty", DType::kU8, {0}, zeros(0)).add("c", DType::kU8, {3000}, zeros(3000));
  Bytes file = builder.to_bytes();
  file.resize(file.size() - 4096);
  const std::string message = refusal(file);
  EXPECT_NE(message.find("11000 data bytes expected, 6904 found: 4096 bytes missing (incomplete "
                         "download?), 2 tensors cut, first tensor \"b\""),
            std::string::npos)
      << message;
}

TEST(safetensors_refusal, case_069_cut_at_the_header_end_names_all_tensors) {
  SafetensorsBuilder builder;
  builder.add("a", DType::kU8, {8}, zeros(8)).add("b", DType::kU8, {8}, zeros(8));
  Bytes file = builder.to_bytes();
  file.resize(file.size() - 16);
  const std::string message = refusal(file);
  EXPECT_NE(message.find("16 bytes missing"), std::string::npos) << message;
  EXPECT_NE(message.find("2 tensors cut, first tensor \"a\""), std::string::npos) << message;
}

TEST(safetensors_refusal, case_069_bytes_after_the_last_tensor_are_refused) {
  Bytes file = SafetensorsBuilder().add("a", DType::kU8, {8}, zeros(8)).to_bytes();
  file.resize(file.size() + 4096);
  const std::string message = refusal(file);
  EXPECT_NE(message.find("4096 bytes after the last tensor"), std::string::npos) << message;
}

TEST(safetensors_refusal, case_072_shape_and_range_disagree) {
  const std::string message =
      refusal(raw_safetensors(one("F8_E4M3", "[128,128]", "[0,128]"), zeros(128)));
  EXPECT_NE(message.find("tensor \"w\": F8_E4M3 [128, 128] with data_offsets [0, 128]: 16384 bytes "
                         "expected, 128 given"),
            std::string::npos)
      << message;
}

TEST(safetensors_refusal, case_075_f4_with_an_odd_row_is_refused) {
  // 14 elements are 7 whole bytes, but row 1 would begin in the middle of a byte.
  for (const char* shape : {"[2,7]", "[7]", "[1,7]"}) {
    const std::string message = refusal(raw_safetensors(one("F4", shape, "[0,7]"), zeros(7)));
    EXPECT_NE(message.find("F4 ["), std::string::npos) << message;
    EXPECT_NE(message.find("whole bytes"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace deepinfer::checkpoint
