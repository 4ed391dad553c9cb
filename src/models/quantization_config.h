// What config.json says about quantization: `quantization_config`, of the kinds "fp8" (DeepSeek,
// Qwen, transformers) and "compressed-tensors".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/module_pattern.h"

namespace deepinfer::models {

struct BlockShape {
  std::int64_t n = 0;
  std::int64_t k = 0;

  bool operator==(const BlockShape&) const = default;
};

/// One entry of compressed-tensors' `config_groups`.
struct QuantizationGroup {
  std::string name;
  int bits = 0;  ///< 8: e4m3fn, 4: e2m1
  BlockShape block;
  std::string unsupported;  ///< why no weight of this group can be used; empty if it can
  std::vector<std::string> names;
  std::vector<ModulePattern> patterns;
  bool all_linear = false;  ///< targets the class "Linear"
};

class QuantizationConfig {
 public:
  enum class Method { kNone, kFp8, kCompressedTensors };

  /// Reads config.json of a folder; a folder without one, or a config.json that says nothing about
  /// quantization, gives Method::kNone.
  ///
  /// Throws Error(kBadInput) for a damaged or contradictory config.json, Error(kUnsupported) for
  /// another `quant_method`.
  static QuantizationConfig read(const std::filesystem::path& directory);

  Method method() const noexcept { return method_; }

  /// `weight_block_size` of the method "fp8".
  const std::optional<BlockShape>& block() const noexcept { return block_; }

  /// `expert_dtype` ("fp4" or "fp8"), wherever it is written; empty if it is not.
  const std::string& expert_dtype() const noexcept { return expert_dtype_; }

  /// The compressed-tensors group of a module: by name, then by pattern, then by class.
  const QuantizationGroup* group_of(std::string_view module) const;

 private:
  Method method_ = Method::kNone;
  std::optional<BlockShape> block_;
  std::string expert_dtype_;
  std::vector<QuantizationGroup> groups_;
};

}  // namespace deepinfer::models
