// Which tensors of a checkpoint make which weight: codes and scales paired by name, data type,
// shape and configuration together, refused when they disagree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/export.h"
#include "deepinfer/weight.h"

namespace deepinfer {

/// What the rows of a weight are.
enum class RowOrder : std::uint8_t {
  kPlain,
  kGateUp,  ///< row 2i is row i of gate_proj, row 2i + 1 is row i of up_proj (gpt-oss)
};

/// A matrix of a checkpoint that a linear layer can use, or a stack of such matrices, e.g. one for
/// each expert.
struct MappedWeight {
  std::string name;      ///< module name: "model.layers.0.self_attn.q_proj"
  std::string format;    ///< "bf16", "fp8-32x32", "fp8-channel", "mxfp8", "mxfp4", "nvfp4", ...
  std::string producer;  ///< who writes such tensors; empty for bf16
  WeightView view;       ///< matrix 0: codes and scales in the mapped files
  const Tensor* codes = nullptr;
  const Tensor* scales = nullptr;  ///< null for bf16

  bool stacked = false;                ///< a stack, even if it is of one matrix
  std::int64_t groups = 1;             ///< matrices in the stack, all of the shape of `view`
  std::int64_t group_code_bytes = 0;   ///< from matrix to matrix
  std::int64_t group_scale_bytes = 0;  ///< the same of the scales
  RowOrder row_order = RowOrder::kPlain;

  /// NVFP4: an F32 value for the whole weight, by which each value is multiplied, or divided.
  const Tensor* tensor_scale = nullptr;
  bool tensor_scale_divides = false;

  /// Why this weight, though understood, cannot run here; empty if it can. Of such a weight `view`
  /// has the shape, the codes and the block, but scale_type is kNone when its scales have no
  /// ScaleType, so that Weight::prepare() refuses it.
  std::string cannot_run;
};

/// Matrix `group` of a stack. Throws Error(kInvalidArgument) if there is none of that number.
DEEPINFER_API WeightView group_view(const MappedWeight& weight, std::int64_t group);

/// Modules whose scale grid begins anew every `rows` rows, because shards were quantized apart
/// before they were joined (MiMo). Nothing in such a checkpoint says so. They become stacks of
/// matrices of `rows` rows.
struct Segmentation {
  std::string pattern;  ///< a regular expression that is found in the module's name
  std::int64_t rows = 0;
};

struct MapOptions {
  std::vector<Segmentation> segmentations = {};  ///< the first that fits counts
  /// The text of a config.json that is in memory; nothing: the folder's files are read.
  std::optional<std::string> config_json = std::nullopt;
};

/// Something that keeps a tensor from being used, e.g. an fp8 weight without scales.
struct MapProblem {
  std::string tensor;
  std::string reason;  ///< one line: expected, found, names that were tried
};

/// The weights of a checkpoint. Points into the Checkpoint, which must outlive it.
class DEEPINFER_API WeightMap {
 public:
  /// Pairs the tensors of `checkpoint`, reading `quantization_config` from its config.json (or
  /// hf_quant_config.json) if there is one. Never throws for a single tensor that does not fit: it
  /// becomes a problem. Throws Error(kBadInput) for a config.json that cannot be read,
  /// Error(kUnsupported) for a quantization method that is not known (its name is given),
  /// Error(kInvalidArgument) for a segmentation that cannot be.
  static WeightMap build(const Checkpoint& checkpoint, const MapOptions& options = {});

  /// All matrices, sorted by name.
  const std::vector<MappedWeight>& weights() const noexcept { return weights_; }

  /// The weight of a module, or nullptr.
  const MappedWeight* find(std::string_view name) const noexcept;

  /// The weight of a module, which may be one that cannot run; throws Error(kBadInput) with the
  /// reason when it is missing or does not fit.
  const MappedWeight& at(std::string_view name) const;

  /// Tensors that are neither a weight, nor the scales of one, nor plain (norms, biases, ...).
  const std::vector<MapProblem>& problems() const noexcept { return problems_; }

 private:
  std::vector<MappedWeight> weights_;
  std::vector<MapProblem> problems_;
};

}  // namespace deepinfer
