// What quantize() does with every tensor, decided and checked before anything is written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/quantize.h"
#include "weights/quantize_rows.h"

namespace deepinfer::models {

/// A format that can be written.
struct TargetFormat {
  const char* name;
  weights::BlockFormat block;
  bool is_fp8;         ///< codes and grid have the layout of quant_method "fp8"
  const char* layout;  ///< its name in compressed-tensors
};

struct PlannedTensor {
  const Tensor* source = nullptr;
  std::string module;                    ///< of a linear weight
  const TargetFormat* format = nullptr;  ///< of a linear weight
  bool copied = true;                    ///< byte for byte: no linear weight, or bf16 already
  checkpoint::OutputTensor codes;
  checkpoint::OutputTensor scales;  ///< without a name: none
};

struct QuantizePlan {
  std::vector<PlannedTensor> tensors;  ///< sorted by name
  bool compressed_tensors = false;     ///< else quant_method "fp8", if anything is quantized
  nlohmann::ordered_json config;       ///< the source's config.json
};

/// Every format that can be written.
const std::vector<TargetFormat>& target_formats();

/// Throws Error(kInvalidArgument) for formats and patterns that cannot be; before any file is read.
void check_options(const QuantizeOptions& options);

/// Throws as quantize() does.
QuantizePlan plan_quantization(const Checkpoint& checkpoint, const QuantizeOptions& options);

/// config.json of the output: that of the source with a `quantization_config`.
std::string output_config(const QuantizePlan& plan);

}  // namespace deepinfer::models
