// Reading JSON that nobody vouches for: what is refused, and that every refusal names its place.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "deepinfer/error.h"
#include "json/json_node.h"
#include "json/quoted.h"
#include "safetensors_builder.h"

namespace deepinfer::json {
namespace {

namespace fs = std::filesystem;
using deepinfer::testing::TempDir;
using deepinfer::testing::write_file;

template <typename Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

std::string parse_refusal(const std::string& text) {
  return refusal([&] { parse_json(text, "f.json"); });
}

TEST(json, values_are_those_of_the_library) {
  for (const char* text :
       {"null", "true", "-1", "18446744073709551615", "1.5e3", R"("\u00e9\n")", "[]", "{}",
        R"({"a":[1,{"b":[]},"x"],"c":{"a":null},"":[[[]]]})", " [ 1 , 2 ] "}) {
    EXPECT_EQ(parse_json(text, "f.json"), Json::parse(text)) << text;
  }
}

TEST(json, equal_members_are_refused) {
  EXPECT_EQ(parse_refusal(R"({"a":1,"b":{"x":1,"x":1}})"),
            "f.json: expected each member once, found \"x\" twice");
  EXPECT_EQ(parse_json(R"([{"a":1},{"a":{"a":2}}])", "f.json").size(), 2u);
}

TEST(json, depth_is_bounded) {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "f.json").is_array());
  EXPECT_EQ(parse_refusal(nested(kMaxJsonDepth + 1)),
            "f.json: expected at most 64 arrays and objects inside each other, found more");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"\":";
  EXPECT_EQ(parse_refusal(objects), parse_refusal(nested(kMaxJsonDepth + 1)));
}

TEST(json, broken_text_is_refused) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "\"\xff\"", "nul", "1 2", "\"\\ud800\""}) {
    EXPECT_TRUE(parse_refusal(text).starts_with("f.json: expected JSON, found an error at byte"))
        << text;
  }
  EXPECT_EQ(parse_refusal("[1e999]"), "f.json: expected JSON, found a number out of range");
}

TEST(json, names_in_messages_are_one_printable_line) {
  EXPECT_EQ(in_quotes("a\n\x1b\x7f\xc2\x9b"
                      "b\xe2\x80\xa8\xc3\xa9"),
            "\"a????b?\xc3\xa9\"");
  EXPECT_EQ(shortened(std::string(63, 'x') + "\xc3\xa9"), std::string(63, 'x') + "...");
  const Json json = parse_json(R"({"a\nb\u0000c":1})", "f.json");
  const std::string file = "f.json";
  const std::string message = refusal(
      [&] { static_cast<void>(JsonNode(json, file)[std::string_view("a\nb\0c", 5)].string()); });
  EXPECT_EQ(message, "f.json: a?b?c: expected a string, found 1");
}

TEST(json, files_that_cannot_be_read_are_refused_by_name) {
  TempDir dir;
  const fs::path file = dir.path() / "f.json";
  const auto message = [&] { return refusal([&] { read_file(file); }); };
  EXPECT_EQ(message(), file.string() + ": expected a file, found none");
  fs::create_directory(file);
  EXPECT_EQ(message(), file.string() + ": expected a file, found something else");
  fs::remove(file);
  fs::create_symlink("f.json", file);
  EXPECT_EQ(message(), file.string() + ": cannot be read: Too many levels of symbolic links");
  fs::remove(file);
  fs::create_symlink("/proc/self/mem", file);  // reading at 0 is an input/output error
  EXPECT_EQ(message(), file.string() + ": cannot be read: Input/output error");
}

TEST(json, files_above_the_limit_are_refused_before_they_fill_the_memory) {
  TempDir dir;
  const fs::path file = dir.path() / "f.json";
  write_file(file, std::string(70'000, ' '));
  EXPECT_EQ(read_file(file).size(), 70'000u);
  fs::resize_file(file, std::uintmax_t{1} << 40);
  EXPECT_EQ(refusal([&] { read_file(file); }),
            file.string() + ": expected at most 100000000 bytes, found more");
}

}  // namespace
}  // namespace deepinfer::json
