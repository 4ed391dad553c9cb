// The vocabulary of a tokenizer.json: `model.vocab`, `model.merges`, `added_tokens`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json/json_node.h"
#include "text/bpe.h"
#include "text/token_table.h"

namespace deepinfer::text {

struct AddedToken {
  std::string_view content;
  std::int32_t id;
  bool special;
  bool normalized;
};

/// Views into the JSON that it was read from.
struct Vocabulary {
  std::vector<std::string_view> written;                   ///< [num_tokens], by id
  std::unordered_map<std::string_view, std::int32_t> ids;  ///< of `model.vocab` alone
  std::vector<AddedToken> added;
};

/// Reads both lists of tokens; together they have the ids 0 to num_tokens - 1, each once.
Vocabulary read_vocabulary(const json::JsonNode& vocab, const json::JsonNode& added_tokens);

TokenTable make_token_table(const Vocabulary& vocabulary);

/// Reads the merges, in order of rank.
Bpe read_bpe(const json::JsonNode& merges, const Vocabulary& vocabulary);

}  // namespace deepinfer::text
