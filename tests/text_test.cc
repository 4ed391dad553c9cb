// The tokenizer: against the ids and words that the PyPI package tokenizers gives (tests/golden),
// and the rules of byte pair encoding and added tokens on handmade vocabularies.
#include "deepinfer/text.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "deepinfer/error.h"
#include "random_data.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "tokenizer_builder.h"

namespace deepinfer {
namespace {

using Ids = std::vector<std::int32_t>;
using testing::TokenizerBuilder;

// The cases of a golden file, by value: a range-for keeps only the outermost temporary alive.
nlohmann::json golden_cases(const char* name) {
  std::ifstream file(std::filesystem::path(DEEPINFER_SOURCE_DIR) / "tests/golden" / name);
  return nlohmann::json::parse(file).at("cases");
}

class smollm2_test : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("DEEPINFER_SMOLLM2");
    const std::filesystem::path path =
        std::filesystem::path(
            folder != nullptr ? folder : DEEPINFER_SOURCE_DIR "/build/models/smollm2-bf16") /
        "tokenizer.json";
    if (!std::filesystem::exists(path)) {
      std::cerr << "SKIPPED: no SmolLM2 tokenizer at " << path << "; set DEEPINFER_SMOLLM2\n";
      GTEST_SKIP() << "no SmolLM2 tokenizer at " << path << "; set DEEPINFER_SMOLLM2";
    }
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::from_file(path));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(smollm2_test, encodes_as_the_reference) {
  const nlohmann::json cases = golden_cases("smollm2_tokens.json");
  ASSERT_GE(cases.size(), 300U);
  for (const auto& c : cases) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->encode(text, true), ids) << c["text"].dump();
    EXPECT_EQ(tokenizer_->encode(text, false), c.value("plain", ids)) << c["text"].dump();
  }
}

TEST_F(smollm2_test, decode_undoes_encode) {
  int num_cases = 0;
  for (const auto& c : golden_cases("smollm2_tokens.json")) {
    const auto text = c["text"].get<std::string>();
    if (c.value("lossy", false)) continue;
    ++num_cases;
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, true), true), text) << c["text"].dump();
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text, false)), text) << c["text"].dump();
  }
  EXPECT_GE(num_cases, 300);
}

TEST_F(smollm2_test, invalid_bytes_are_encoded_as_replacement_characters) {
  EXPECT_EQ(tokenizer_->encode("a\xFF\xC3 b\xE2\x82", true),
            tokenizer_->encode("a\uFFFD\uFFFD b\uFFFD", true));
}

TEST_F(smollm2_test, special_tokens_show_only_on_request) {
  const std::int32_t id = tokenizer_->find("<|im_end|>").value();
  EXPECT_EQ(id, 2);
  EXPECT_EQ(tokenizer_->token_bytes(id), "");
  EXPECT_EQ(tokenizer_->token_bytes(id, true), "<|im_end|>");
  EXPECT_EQ(tokenizer_->encode("<|im_end|>", true), Ids{id});
  EXPECT_GT(tokenizer_->encode("<|im_end|>", false).size(), 1U);
}

TEST_F(smollm2_test, memory_is_a_few_megabytes) {
  EXPECT_EQ(tokenizer_->vocabulary_size(), 49152);
  EXPECT_GT(tokenizer_->memory_bytes(), std::size_t{1} << 20);
  EXPECT_LT(tokenizer_->memory_bytes(), std::size_t{8} << 20);
}

TEST_F(smollm2_test, threads_share_a_tokenizer) {
  const auto cases = golden_cases("smollm2_tokens.json");
  std::vector<int> num_wrong(4);
  std::vector<std::thread> threads;
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (const auto& c : cases) {
        wrong += tokenizer_->encode(c["text"].get<std::string>(), true) != c["ids"].get<Ids>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, std::vector<int>(4, 0));
}

TEST(pretokenizer_test, cuts_published_patterns_as_the_reference) {
  for (const auto& c : golden_cases("words.json")) {
    text::PreTokenizer cutter;
    for (const auto& step : c["steps"]) {
      cutter.add_split(text::Regex::from_pattern(step[0].get<std::string>(), "test"),
                       step[1] == "isolated");
    }
    text::RegexScratch scratch;
    for (const auto& t : c["texts"]) {
      std::vector<std::string> words;
      cutter.split(t["text"].get<std::string>(), scratch,
                   [&](std::string_view word) { words.emplace_back(word); });
      EXPECT_EQ(words, t["words"].get<std::vector<std::string>>()) << c["name"] << t["text"].dump();
    }
  }
}

TEST(normalizer_test, composes_in_canonical_order) {
  std::string storage;
  EXPECT_EQ(text::to_nfc("plain", storage), "plain");
  EXPECT_EQ(text::to_nfc("e\u0301", storage), "\u00e9");
  EXPECT_EQ(text::to_nfc("e\u0301\u0323", storage), "\u1eb9\u0301");  // the mark below goes first
  EXPECT_EQ(text::to_nfc("\u1112\u1161\u11ab", storage), "\ud55c");
  EXPECT_EQ(text::to_nfc("\u212b", storage), "\u00c5");
  EXPECT_EQ(text::to_nfc("\u0958", storage), "\u0915\u093c");  // excluded from composition
}

// Byte pair encoding as it is defined, without any structure.
Ids merge_naively(Ids ids, const std::vector<text::Merge>& merges) {
  while (true) {
    std::size_t best_rank = merges.size();
    std::size_t best = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left != ids[i] || merges[rank].right != ids[i + 1]) continue;
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best] = merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(bpe_test, short_and_long_words_merge_as_defined) {
  test::Random random(7);
  for (int trial = 0; trial < 300; ++trial) {
    // Three bytes and merges of random tokens, some of them to a token that exists already.
    text::ByteTokens bytes;
    bytes.fill(-1);
    for (int i = 0; i < 3; ++i) bytes[static_cast<std::size_t>('a' + i)] = i;
    std::vector<text::Merge> merges;
    text::MergeTable table(20);
    std::int32_t num_tokens = 3;
    for (int i = 0; i < 20; ++i) {
      const auto any = [&] { return static_cast<std::int32_t>(random.below(num_tokens)); };
      const bool fresh = random.below(4) != 0;
      const text::Merge merge{any(), any(), fresh ? num_tokens : any()};
      if (!table.insert(merge, static_cast<std::uint32_t>(merges.size()))) continue;
      merges.push_back(merge);
      num_tokens += fresh ? 1 : 0;
    }
    const text::Bpe bpe(bytes, table);
    for (std::size_t length : {0U, 1U, 2U, 3U, 7U, 20U, 47U, 48U, 49U, 50U, 90U}) {
      std::string word;
      Ids ids;
      for (std::size_t i = 0; i < length; ++i) {
        ids.push_back(static_cast<std::int32_t>(random.below(3)));
        word += static_cast<char>('a' + ids.back());
      }
      Ids got;
      bpe.encode(word, got);
      ASSERT_EQ(got, merge_naively(ids, merges)) << "trial " << trial << ", word " << word;
    }
  }
}

TEST(tokenizer_test, lower_rank_wins_then_the_leftmost) {
  const Tokenizer rank = TokenizerBuilder().tokens({"ab", "bc"}).merges({"b c", "a b"}).build();
  EXPECT_EQ(rank.encode("abc", false), (Ids{'a', 257}));
  const Tokenizer left = TokenizerBuilder().tokens({"aa"}).merges({"a a"}).build();
  EXPECT_EQ(left.encode("aaa", false), (Ids{256, 'a'}));
}

TEST(tokenizer_test, merges_may_be_pairs) {
  const Tokenizer tokenizer = TokenizerBuilder()
                                  .tokens({"th", "the"})
                                  .merges(nlohmann::json::parse(R"([["t", "h"], ["th", "e"]])"))
                                  .build();
  EXPECT_EQ(tokenizer.encode("thethh", false), (Ids{257, 256, 'h'}));
}

TEST(tokenizer_test, ignore_merges_takes_whole_words) {
  TokenizerBuilder builder;
  builder.tokens({"the"});
  EXPECT_EQ(builder.build().encode("the", false), (Ids{'t', 'h', 'e'}));
  builder.set("/model/ignore_merges", true);
  EXPECT_EQ(builder.build().encode("the", false), Ids{256});
}

TEST(tokenizer_test, a_byte_without_token_is_left_out) {
  TokenizerBuilder builder;
  const std::string last = testing::written_byte(0xFF);
  builder.json["model"]["vocab"].erase(last);
  builder.json["model"]["vocab"].erase("b");
  builder.json["model"]["vocab"]["x\u20ac"] = 'b';  // keeps the ids without gaps
  builder.json["model"]["vocab"]["aa"] = 0xFF;
  builder.merges({"a a"});
  EXPECT_EQ(builder.build().encode("aba", false), Ids{0xFF});
}

TEST(tokenizer_test, the_leftmost_longest_added_token_is_cut_out) {
  const Tokenizer tokenizer = TokenizerBuilder()
                                  .added("<a>", false)
                                  .added("<a>b", false)
                                  .added("b<a", false)
                                  .added("<s>", true)
                                  .build();
  EXPECT_EQ(tokenizer.encode("<a>", false), Ids{256});
  EXPECT_EQ(tokenizer.encode("<a>b<a>", false), (Ids{257, 256}));
  EXPECT_EQ(tokenizer.encode("b<a>", false), (Ids{258, '>'}));
  EXPECT_EQ(tokenizer.encode("x<s>y", true), (Ids{'x', 259, 'y'}));
  EXPECT_EQ(tokenizer.encode("x<s>y", false), (Ids{'x', '<', 's', '>', 'y'}));
  EXPECT_EQ(tokenizer.decode(Ids{'x', 259, 256, 'y'}), "x<a>y");
}

TEST(tokenizer_test, normalized_added_tokens_meet_normalized_text) {
  TokenizerBuilder builder;
  builder.set("/normalizer", {{"type", "NFC"}}).added("\u1eb9", false, true);
  EXPECT_EQ(builder.build().encode("\u1eb9", false), Ids{256});
  EXPECT_EQ(builder.build().encode("e\u0323", false), Ids{256});
  EXPECT_EQ(builder.build().decode(Ids{256}), "\u1eb9");
  // A token of the raw text is cut out first and leaves the accent alone.
  builder.added("e", false);
  EXPECT_EQ(builder.build().encode("e\u0323", false), (Ids{'e', 0xCC, 0xA3}));
}

TEST(tokenizer_test, an_added_token_of_the_vocabulary_keeps_its_bytes) {
  // U+00E9 is how the vocabulary writes the byte 0xE9; alone, the token is text.
  const Tokenizer tokenizer =
      TokenizerBuilder().added("\u00e9", false).added("\u00e9e", false).build();
  EXPECT_EQ(tokenizer.encode("\u00e9 \u00e9e", false), (Ids{0xE9, ' ', 256}));
  EXPECT_EQ(tokenizer.token_bytes(0xE9), "\xE9");
  EXPECT_EQ(tokenizer.token_bytes(256), "\u00e9e");
}

TEST(tokenizer_test, a_prefix_space_precedes_each_piece) {
  const Tokenizer tokenizer =
      TokenizerBuilder().set("/pre_tokenizer/add_prefix_space", true).added("<s>", true).build();
  EXPECT_EQ(tokenizer.encode("", true), Ids{});
  EXPECT_EQ(tokenizer.encode("a<s> b", true), (Ids{' ', 'a', 256, ' ', 'b'}));
}

TEST(tokenizer_test, tokens_are_found_by_written_form) {
  const Tokenizer tokenizer = TokenizerBuilder().tokens({"\u0120the"}).added("<s>", true).build();
  EXPECT_EQ(tokenizer.find("\u0120the"), 256);
  EXPECT_EQ(tokenizer.find("<s>"), 257);
  EXPECT_EQ(tokenizer.find(" the"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
  EXPECT_EQ(tokenizer.find("\xFF"), std::nullopt);
  EXPECT_EQ(tokenizer.token_bytes(256), " the");
  EXPECT_EQ(tokenizer.vocabulary_size(), 258);
}

TEST(tokenizer_test, ids_out_of_range_are_refused) {
  const Tokenizer tokenizer = TokenizerBuilder().build();
  for (const std::int32_t id : {-1, 256, std::numeric_limits<std::int32_t>::max()}) {
    try {
      tokenizer.decode(Ids{id});
      ADD_FAILURE() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
}

TEST(tokenizer_test, a_long_word_takes_no_quadratic_time) {
  const Tokenizer tokenizer =
      TokenizerBuilder().tokens({"aa", "aaaa"}).merges({"a a", "aa aa"}).build();
  constexpr std::size_t kLength = 1'000'000;  // squared: hours; with the queue: 0.14 s
  EXPECT_EQ(tokenizer.encode(std::string(kLength, 'a'), false), Ids(kLength / 4, 257));
}

}  // namespace
}  // namespace deepinfer
