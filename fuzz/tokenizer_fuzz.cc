// Feeds texts to the reader of tokenizer.json. A tokenizer that is accepted must encode and decode
// any bytes: ids in range, and no more text than the tokens hold.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "fuzz.h"
#include "json_mutator.h"

namespace {

using namespace deepinfer::fuzz;

constexpr std::string_view kWords[] = {"model",
                                       "type",
                                       "BPE",
                                       "vocab",
                                       "merges",
                                       "a b",
                                       "ab",
                                       "added_tokens",
                                       "id",
                                       "content",
                                       "special",
                                       "normalized",
                                       "single_word",
                                       "lstrip",
                                       "rstrip",
                                       "normalizer",
                                       "NFC",
                                       "pre_tokenizer",
                                       "ByteLevel",
                                       "add_prefix_space",
                                       "use_regex",
                                       "Sequence",
                                       "pretokenizers",
                                       "Digits",
                                       "individual_digits",
                                       "Split",
                                       "pattern",
                                       "Regex",
                                       "String",
                                       "behavior",
                                       "Isolated",
                                       "Removed",
                                       "invert",
                                       "post_processor",
                                       "processors",
                                       "TemplateProcessing",
                                       "decoder",
                                       "ignore_merges",
                                       "byte_fallback",
                                       "\\p{L}+|\\s",
                                       "(a|aa)+$",
                                       "(?i:'s)",
                                       "\xc4\xa0"};

constexpr std::string_view kText = "abab a1\xc3\xa9<a>\xff\xf0\x9f\x98\x80 's  b\n";

void check(const deepinfer::Tokenizer& tokenizer) {
  for (const bool special : {false, true}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(kText, special);
    for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.vocabulary_size());
    std::size_t bytes = 0;
    for (const std::int32_t id : ids) bytes += tokenizer.token_bytes(id, true).size();
    require(tokenizer.decode(ids, true).size() == bytes);
  }
  require(tokenizer.memory_bytes() > 0);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return mutate_json_input(data, size, max_size, seed, kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Tally::instance().input();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = deepinfer::Tokenizer::from_json(text, "tokenizer.json");
    Tally::instance().accepted(data, size);
    check(tokenizer);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
  }
  return 0;
}
