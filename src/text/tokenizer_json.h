// tokenizer.json -> the parts of a tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/token_table.h"

namespace deepinfer::text {

struct TokenizerParts {
  TokenTable tokens;
  AddedTokens raw_added;         ///< found in the text as it is
  AddedTokens normalized_added;  ///< found after normalization
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  bool ignore_merges = false;  ///< a word that is a token needs no merges
};

/// Reads the bytes of a tokenizer.json. Throws Error(kBadInput) for what is damaged or
/// contradictory, Error(kUnsupported) for what is not implemented; `file` is named in messages.
TokenizerParts parse_tokenizer(std::string_view bytes, const std::string& file);

}  // namespace deepinfer::text
