// tokenizer.json files that must be refused: each with the kind of error and the member it names.
#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "random_data.h"
#include "text/regex.h"
#include "tokenizer_builder.h"

namespace deepinfer {
namespace {

using nlohmann::json;
using testing::TokenizerBuilder;

void expect_error(const std::string& bytes, ErrorCode code, const std::string& part) {
  try {
    text::parse_tokenizer(bytes, "tokenizer.json");
    ADD_FAILURE() << "accepted, expected: " << part;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nexpected: " << part;
    EXPECT_TRUE(message.starts_with("tokenizer.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

struct Refusal {
  const char* pointer;  // the member that is replaced
  const char* value;
  const char* part;  // of the message
};

void expect_refusals(std::initializer_list<Refusal> refusals, ErrorCode code) {
  for (const Refusal& refusal : refusals) {
    TokenizerBuilder builder;
    builder.tokens({"ab"}).added("<s>", true);
    builder.set(refusal.pointer, json::parse(refusal.value));
    expect_error(builder.json.dump(), code, refusal.part);
  }
}

TEST(tokenizer_json_test, what_is_not_implemented_is_refused_by_name) {
  expect_refusals(
      {
          {"/model/type", R"("Unigram")", "model: \"Unigram\""},
          {"/model/type", R"("WordPiece")", "model: \"WordPiece\""},
          {"/model/byte_fallback", "true", "model.byte_fallback"},
          {"/model/dropout", "0.1", "model.dropout"},
          {"/model/unk_token", R"("<unk>")", "model.unk_token"},
          {"/model/continuing_subword_prefix", R"("##")",
           "model.continuing_subword_prefix: \"##\""},
          {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix: \"</w>\""},
          {"/normalizer", R"({"type": "NFKC"})", "normalizer: \"NFKC\""},
          {"/normalizer", R"({"type": "Sequence", "normalizers": []})", "normalizer: \"Sequence\""},
          {"/decoder", "null", "decoder: only"},
          {"/decoder", R"({"type": "Metaspace"})", "decoder: \"Metaspace\""},
          {"/post_processor", R"({"type": "BertProcessing"})",
           "post_processor: \"BertProcessing\""},
          {"/post_processor", R"({"type": "Sequence", "processors": [{"type": "X"}]})",
           "post_processor.processors[0]: \"X\""},
          {"/pre_tokenizer", "null", "pre_tokenizer: only byte-level"},
          {"/pre_tokenizer", R"({"type": "Digits", "individual_digits": true})",
           "pre_tokenizer: only byte-level"},
          {"/pre_tokenizer", R"({"type": "Whitespace"})", "pre_tokenizer: \"Whitespace\""},
          {"/pre_tokenizer",
           R"({"type": "Sequence", "pretokenizers": [
               {"type": "ByteLevel", "add_prefix_space": false},
               {"type": "Digits", "individual_digits": true}]})",
           "pre_tokenizer.pretokenizers[1]: \"Digits\" after"},
          {"/pre_tokenizer",
           R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "MergedWithNext",
               "invert": false})",
           "pre_tokenizer.behavior: \"MergedWithNext\""},
          {"/pre_tokenizer",
           R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated",
               "invert": true})",
           "pre_tokenizer.invert: true"},
          {"/pre_tokenizer",
           R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated",
               "invert": false})",
           "pre_tokenizer.pattern.Regex: the construct \"\\w\""},
          {"/added_tokens/0/lstrip", "true", "added_tokens[0].lstrip"},
          {"/added_tokens/0/rstrip", "true", "added_tokens[0].rstrip"},
          {"/added_tokens/0/single_word", "true", "added_tokens[0].single_word"},
      },
      ErrorCode::kUnsupported);
}

TEST(tokenizer_json_test, wrong_types_and_contradictions_are_bad_input) {
  expect_refusals(
      {
          {"/model", "null", "model: expected an object, found nothing"},
          {"/model", "[]", "model: expected an object, found an array"},
          {"/model/type", "null", "model.type: expected a string, found nothing"},
          {"/model/vocab", "[]", "model.vocab: expected an object"},
          {"/model/vocab/a", "1.5", "expected an integer for token \"a\""},
          {"/model/vocab/a", "\"1\"", "expected an integer for token \"a\""},
          {"/model/vocab/a", "-1", "found -1 for token \"a\""},
          {"/model/vocab/a", "18446744073709551615", "expected an integer for token \"a\""},
          {"/model/vocab/a", "98", "id 98 is given to both \"a\" and \"b\""},
          {"/model/vocab/a", "1000000", "expected ids without gaps, found 1000000"},
          {"/model/merges", "{}", "model.merges: expected an array"},
          {"/model/merges", R"(["a"])", "model.merges[0]: expected two tokens"},
          {"/model/merges", R"(["a b c"])", "model.merges[0]: expected two tokens"},
          {"/model/merges", R"([["a"]])", "model.merges[0]: expected two tokens"},
          {"/model/merges", R"([["a", 1]])", "model.merges[0]: expected two tokens"},
          {"/model/merges", R"([7])", "model.merges[0]: expected two tokens"},
          {"/model/merges", R"(["a b", "a \n\u20ac"])",
           "model.merges[1]: token \"?\u20ac\" is not"},
          {"/model/merges", R"(["a c"])", "model.merges[0]: token \"ac\" is not"},
          {"/model/merges", R"(["a b", "a b"])", "model.merges[1]: the merge of \"a\" and \"b\""},
          {"/model/ignore_merges", "1", "model.ignore_merges: expected true or false"},
          {"/normalizer", R"("NFC")", "normalizer: expected an object"},
          {"/pre_tokenizer", R"({})", "pre_tokenizer.type: expected a string"},
          {"/pre_tokenizer", R"({"type": "ByteLevel"})", "pre_tokenizer.add_prefix_space"},
          {"/pre_tokenizer", R"({"type": "Sequence"})", "pre_tokenizer.pretokenizers"},
          {"/pre_tokenizer",
           R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
               "invert": false})",
           "pre_tokenizer.pattern.Regex: expected a regular expression"},
          {"/pre_tokenizer",
           R"({"type": "Split", "pattern": {}, "behavior": "Isolated", "invert": false})",
           "pre_tokenizer.pattern.Regex: expected a string"},
          {"/added_tokens", "{}", "added_tokens: expected an array"},
          {"/added_tokens/0", "1", "added_tokens[0]: expected an object"},
          {"/added_tokens/0/id", "null", "added_tokens[0].id: expected an integer"},
          {"/added_tokens/0/id", "-1", "added_tokens[0].id"},
          {"/added_tokens/0/id", "99999999999", "added_tokens[0].id"},
          {"/added_tokens/0/id", "300", "expected ids without gaps, found 300"},
          {"/added_tokens/0/id", "5", "id 5 is given to both"},
          {"/added_tokens/0/content", R"("")", "added_tokens[0].content"},
          {"/added_tokens/0/content", R"("ab")", "token \"ab\" has both id 256 and id 257"},
          {"/added_tokens/0/special", "null", "added_tokens[0].special"},
          {"/added_tokens/0/normalized", "0", "added_tokens[0].normalized"},
      },
      ErrorCode::kBadInput);
}

TEST(tokenizer_json_test, a_gap_is_found_below_the_largest_id) {
  TokenizerBuilder builder;
  builder.json["model"]["vocab"].erase("a");
  builder.json["model"]["vocab"]["ab"] = 255;  // twice
  expect_error(builder.json.dump(), ErrorCode::kBadInput, "id 255 is given to both");
  builder.json["model"]["vocab"].erase("ab");
  expect_error(builder.json.dump(), ErrorCode::kBadInput, "found 255");
}

TEST(tokenizer_json_test, damaged_files_are_bad_input) {
  for (const char* bytes : {"", "{", "\xFF", "null x", "{\"model\": 1e999}", "[1,"}) {
    expect_error(bytes, ErrorCode::kBadInput, "expected JSON");
  }
  for (const char* bytes : {"null", "[]", "3", "\"model\""}) {
    expect_error(bytes, ErrorCode::kBadInput, "top level: expected an object");
  }
  expect_error(std::string(1'000'000, '['), ErrorCode::kBadInput, "expected at most 64 arrays");
}

TEST(tokenizer_json_test, nesting_is_bounded) {
  json inner = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  for (int i = 0; i < 20; ++i) {  // the reader of JSON stops at 64 levels
    inner = {{"type", "Sequence"}, {"pretokenizers", json::array({inner})}};
  }
  TokenizerBuilder builder;
  builder.json["pre_tokenizer"] = inner;
  expect_error(builder.json.dump(), ErrorCode::kUnsupported, "nested too deeply");
}

TEST(tokenizer_json_test, every_truncation_is_refused) {
  const std::string bytes = TokenizerBuilder().tokens({"ab"}).merges({"a b"}).json.dump();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(text::parse_tokenizer(bytes.substr(0, length), "t"), Error) << length;
  }
}

TEST(tokenizer_json_test, random_damage_gives_an_error_or_a_tokenizer) {
  const std::string good = TokenizerBuilder()
                               .tokens({"ab"})
                               .merges({"a b"})
                               .added("<s>", true)
                               .set("/normalizer", {{"type", "NFC"}})
                               .json.dump();
  test::Random random(3);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bytes = good;
    for (std::uint64_t i = 0; i <= random.below(3); ++i) {
      bytes[random.below(bytes.size())] = "0123456789\"{}[],:nulltrue\\\xC3"[random.below(28)];
    }
    try {
      text::parse_tokenizer(bytes, "t");
    } catch (const Error&) {
    }
  }
}

TEST(tokenizer_json_test, a_missing_file_is_bad_input) {
  const testing::TempDir dir;
  for (const auto& path : {dir.path() / "none.json", dir.path()}) {
    try {
      Tokenizer::from_file(path);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
  }
}

TEST(regex_syntax_test, what_two_engines_read_differently_is_rewritten_or_refused) {
  const auto translate = [](const char* p) { return text::translate_pattern(p, "test"); };
  EXPECT_EQ(translate(R"(\s+(?!\S)|[^\s\p{L}]|\p{Lu}\r\n\.\[)"),
            R"(\p{wspace}+(?!\P{wspace})|[^\p{wspace}\p{L}]|\p{Lu}\r\n\.\[)");
  EXPECT_EQ(translate(R"(\p{Han}\u3042\x41\x{1F600})"), R"(\p{sc:Han}\x{3042}\x{41}\x{1F600})");
  for (const char* pattern :
       {R"(\w)",     R"(\b)",  R"(\h)",   R"([\w])",    "^a",      "a$",       "[a&&b]",
        "[a[b]]",    "[]a]",   "(?m:a)",  "(?<name>a)", "a{1,2}+", R"(\1)",    R"(\)",
        R"(\p{^L})", R"(\pL)", R"(\p{L)", R"(\u12)",    R"(\x{})", R"(\x{12)", R"(\xg1)"}) {
    EXPECT_THROW(translate(pattern), Error) << pattern;
  }
}

}  // namespace
}  // namespace deepinfer
