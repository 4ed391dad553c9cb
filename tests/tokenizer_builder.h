// Builds small tokenizer.json files for tests: the 256 bytes have the ids 0 to 255, further tokens
// follow in the order given.
//
//   Tokenizer t = TokenizerBuilder().tokens({"th", "the"}).merges({"t h", "th e"}).build();
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "deepinfer/text.h"
#include "safetensors_builder.h"
#include "text/byte_level.h"

namespace deepinfer::testing {

/// How a byte is written in a byte-level vocabulary.
inline std::string written_byte(int byte) {
  std::string out;
  for (std::size_t code = 0; code < text::kByteAlphabet.size(); ++code) {
    if (text::kByteAlphabet[code] == byte) text::append_utf8(out, static_cast<char32_t>(code));
  }
  return out;
}

struct TokenizerBuilder {
  nlohmann::json json;

  TokenizerBuilder() {
    json = nlohmann::json::parse(R"({
      "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
      "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": false},
      "post_processor": null,
      "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                  "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": false, "vocab": {}, "merges": []}})");
    for (int byte = 0; byte < text::kNumBytes; ++byte) {
      json["model"]["vocab"][written_byte(byte)] = byte;
    }
  }

  TokenizerBuilder& tokens(const std::vector<std::string>& written) {
    for (const std::string& token : written) json["model"]["vocab"][token] = next_id_++;
    return *this;
  }

  TokenizerBuilder& merges(nlohmann::json list) {
    json["model"]["merges"] = std::move(list);
    return *this;
  }

  TokenizerBuilder& added(const std::string& content, bool special, bool normalized = false) {
    const auto& vocab = json["model"]["vocab"];
    json["added_tokens"].push_back(
        {{"id", vocab.contains(content) ? vocab[content].get<int>() : next_id_++},
         {"content", content},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", normalized},
         {"special", special}});
    return *this;
  }

  TokenizerBuilder& set(const char* pointer, nlohmann::json value) {
    json[nlohmann::json::json_pointer(pointer)] = std::move(value);
    return *this;
  }

  Tokenizer build() const {
    const TempDir dir;
    write_file(dir.path() / "tokenizer.json", json.dump());
    return Tokenizer::from_file(dir.path() / "tokenizer.json");
  }

 private:
  int next_id_ = text::kNumBytes;
};

}  // namespace deepinfer::testing
