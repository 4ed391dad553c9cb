// Which tensors of a checkpoint make which weight: codes and scales paired by name, data type,
// shape and configuration together, refused when they disagree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/export.h"
#include "deepinfer/weight.h"

namespace deepinfer {

/// A matrix of a checkpoint that a linear layer can use.
struct MappedWeight {
  std::string name;    ///< module name: "model.layers.0.self_attn.q_proj"
  std::string format;  ///< "bf16", "fp8-32x32", "fp8-128x128", "mxfp8", "mxfp4", ...
  WeightView view;     ///< codes and scales in the mapped files
  const Tensor* codes = nullptr;
  const Tensor* scales = nullptr;  ///< null for bf16
};

/// Something that keeps a tensor from being used, e.g. an fp8 weight without scales.
struct MapProblem {
  std::string tensor;
  std::string reason;  ///< one line: expected, found, names that were tried
};

/// The weights of a checkpoint. Points into the Checkpoint, which must outlive it.
class DEEPINFER_API WeightMap {
 public:
  /// Pairs the tensors of `checkpoint`, reading `quantization_config` from its config.json if there
  /// is one. Never throws for a single tensor that does not fit: it becomes a problem. Throws
  /// Error(kBadInput) for a config.json that cannot be read, Error(kUnsupported) for a quantization
  /// method that is not known (its name is given).
  static WeightMap build(const Checkpoint& checkpoint);

  /// All matrices, sorted by name.
  const std::vector<MappedWeight>& weights() const noexcept { return weights_; }

  /// The weight of a module, or nullptr.
  const MappedWeight* find(std::string_view name) const noexcept;

  /// The weight of a module; throws Error(kBadInput) with the reason when it is missing or does not
  /// fit.
  const MappedWeight& at(std::string_view name) const;

  /// Tensors that are neither a weight, nor the scales of one, nor plain (norms, biases, ...).
  const std::vector<MapProblem>& problems() const noexcept { return problems_; }

 private:
  std::vector<MappedWeight> weights_;
  std::vector<MapProblem> problems_;
};

}  // namespace deepinfer
