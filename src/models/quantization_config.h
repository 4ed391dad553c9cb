// What the configuration of a checkpoint says about quantization, module by module:
// `quantization_config` of config.json, or ModelOpt's hf_quant_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json/json_node.h"
#include "models/layouts.h"
#include "models/module_pattern.h"

namespace deepinfer::models {

struct BlockShape {
  std::int64_t n = 0;
  std::int64_t k = 0;

  bool operator==(const BlockShape&) const = default;
};

/// What is said about the quantized weights of a module. Whether a weight is quantized at all is
/// for its own data type to say: lists of exceptions are often wrong.
struct Statement {
  std::string words;                ///< for messages: `quant_method "fp8", expert_dtype "fp4"`
  std::string refused;              ///< why none can be used; empty if they can
  std::optional<Element> element;   ///< nothing: not said
  Set<Grid> grids;                  ///< that are possible
  std::optional<BlockShape> block;  ///< the block of Grid::kBlock, if it is said
};

/// A statement and the modules it is about, by more than their whole names.
struct Rule {
  std::vector<ModulePattern> patterns = {};
  std::string part = {};  ///< the name has this in it
  bool all = false;
  Statement statement = {};

  bool fits(std::string_view module) const;
};

/// Who a statement is about is asked in this order: by name, by the first rule that fits, all.
struct Rules {
  std::map<std::string, Statement, std::less<>> by_name;
  std::vector<Rule> rules;
  Statement otherwise;
};

class QuantizationConfig {
 public:
  /// Reads config.json and hf_quant_config.json of a folder, neither of which must be there.
  ///
  /// Throws Error(kBadInput) for a damaged or contradictory file, Error(kUnsupported) for a
  /// `quant_method` that is not known, or one that changes what values mean.
  static QuantizationConfig read(const std::filesystem::path& directory);

  /// The same from the text of config.json; `file` is its name in messages.
  static QuantizationConfig parse(std::string_view text, const std::string& file);

  Method method() const noexcept { return method_; }

  /// What is said about a module.
  const Statement& about(std::string_view module) const;

 private:
  void read_block(const json::JsonNode& top, const json::JsonNode& inner,
                  const json::JsonNode& block);
  void read_side_file(const std::filesystem::path& file);

  Method method_ = Method::kNone;
  Rules rules_;
};

// One reader per dialect.

void read_compressed_tensors(const json::JsonNode& block, Rules& rules);

/// `block`: of config.json, or "quantization" of hf_quant_config.json.
void read_modelopt(const json::JsonNode& block, Statement& otherwise);

void read_quark(const json::JsonNode& block, Rules& rules);

/// Two positive sides of a block.
BlockShape read_block_shape(const json::JsonNode& node);

}  // namespace deepinfer::models
