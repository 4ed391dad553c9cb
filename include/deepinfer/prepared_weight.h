// Weights with packed scales, single or stacked, in the form that the functions of module.h take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/runtime.h"
#include "deepinfer/tensor.h"
#include "deepinfer/weight.h"

namespace deepinfer {

class WeightMap;

/// e8m0 scales as they travel: int16 pairs, uint8 or float8_e8m0fnu, viewed as bytes, row-major and
/// dense. Rows may be wider than ceil(k / 32) bytes; what is past that is padding.
struct PackedScales {
  const void* data = nullptr;  ///< [rows, columns], of a stacked weight [e, rows, columns]
  DType dtype = DType::kU8;    ///< kU8, kF8E8m0 or kI16 (two scales each)
  std::int64_t rows = 0;
  std::int64_t columns = 0;  ///< elements of `dtype`
};

/// A weight [n, k], or e of them stacked [e, n, k], with one packed scale per row and 32 k.
struct PackedWeightView {
  Element element = Element::kE4m3fn;  ///< or kE2m1
  const void* codes = nullptr;  ///< [n, k] bytes or [n, k / 2] pairs, dense; stacked [e, ...]
  std::optional<std::int64_t> groups;  ///< e of a stacked weight; nothing: a single weight
  std::int64_t n = 0;
  std::int64_t k = 0;
  PackedScales scales;  ///< n rows (of each group)
};

/// The scales that kernels take: [ceil(n / 32), ceil(k / 32)] of e4m3fn, [n, ceil(k / 32)] of e2m1;
/// of a stacked weight that many for each group.
struct KernelScale {
  std::vector<std::uint8_t> bytes;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The kernel scales of a weight, or nothing when its packed scales do not fit: rows of a 32-row
/// block of e4m3fn that differ, too few columns, another number of rows than n (a grid handed in
/// where rows are expected, say), null pointers, bf16. Reads only scales, never codes.
DEEPINFER_API std::optional<KernelScale> kernel_scale(const PackedWeightView& view);

/// A checked weight, single or stacked. Codes stay where they are, and so do e2m1 scales; of
/// e4m3fn scales one row in 32 is kept. The viewed memory must outlive it.
class DEEPINFER_API PreparedWeight {
 public:
  /// From packed scales. Throws Error(kInvalidArgument) that says why they do not fit.
  static PreparedWeight prepare(const PackedWeightView& view, std::string_view name);
  /// From a published form: a single weight of any format.
  static PreparedWeight single(Weight weight);
  /// From published forms of equal n, k and format. Throws Error(kInvalidArgument) if they differ.
  static PreparedWeight stack(std::vector<Weight> groups);

  PreparedWeight(PreparedWeight&&) noexcept = default;
  PreparedWeight& operator=(PreparedWeight&&) noexcept = default;
  PreparedWeight(const PreparedWeight&) = delete;
  PreparedWeight& operator=(const PreparedWeight&) = delete;
  ~PreparedWeight() = default;

  bool stacked() const noexcept { return stacked_; }
  std::int64_t groups() const noexcept { return static_cast<std::int64_t>(weights_.size()); }
  std::int64_t n() const noexcept { return n_; }
  std::int64_t k() const noexcept { return k_; }
  Element element() const noexcept { return element_; }

  /// The single weight, or group `group` of a stacked one. Throws Error(kInvalidArgument) for a
  /// stacked weight without a group, a group out of range, or a group of a single weight.
  const Weight& at(std::optional<std::int64_t> group) const;

 private:
  PreparedWeight() = default;

  std::vector<std::uint8_t> kernel_scales_;
  std::vector<Weight> weights_;
  bool stacked_ = false;
  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
  Element element_ = Element::kE4m3fn;
};

struct NamedPackedWeight {
  std::string name;
  PackedWeightView view;
};

struct NamedPreparedWeight {
  std::string name;
  PreparedWeight weight;
};

struct RefusedWeight {
  std::string name;
  std::string reason;
};

/// What prepare_model() made.
struct DEEPINFER_API PreparedModel {
  std::vector<NamedPreparedWeight> weights;  ///< sorted by name
  std::vector<RefusedWeight> refused;        ///< sorted by name

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(weights.size()); }
  /// The weight with this name, or nullptr.
  const PreparedWeight* find(std::string_view name) const noexcept;
};

/// Prepares every fp8 and fp4 weight that kernels can take, and says of the others why not. Empty
/// when the context's `gemm` switch is off. Takes time in proportion to the scales, not the codes.
DEEPINFER_API PreparedModel prepare_model(const Context& context,
                                          const std::vector<NamedPackedWeight>& weights);
/// The same over the fp8 and fp4 weights of a checkpoint, as published; what `map` could not pair
/// is refused by its tensor name. `map` must outlive it.
DEEPINFER_API PreparedModel prepare_model(const Context& context, const WeightMap& map);

}  // namespace deepinfer
