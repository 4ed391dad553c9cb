// Weights as published: codes and scales that lie in somebody else's memory, checked once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/format.h"

namespace deepinfer {

/// A weight [n, k] in row-major order with one scale per block_n x block_k of it.
struct WeightView {
  Element element = Element::kBf16;
  const void* codes = nullptr;  ///< [n, k] bf16 or e4m3fn, [n, k / 2] bytes of e2m1 pairs
  std::int64_t n = 0;           ///< output features
  std::int64_t k = 0;           ///< input features; even for e2m1
  std::int64_t row_bytes = 0;   ///< bytes from row to row of codes; 0: dense
  ScaleType scale_type = ScaleType::kNone;
  const void* scales = nullptr;    ///< [ceil(n / block_n), ceil(k / block_k)], at any address
  std::int64_t scale_rows = 0;     ///< rows of the grid as stored
  std::int64_t scale_columns = 0;  ///< columns of the grid as stored
  std::int64_t scale_stride = 0;   ///< scales from row to row of the grid; 0: scale_columns
  std::int64_t block_n = 1;        ///< rows that share a scale; n or more: all
  std::int64_t block_k = 32;       ///< k-values that share a scale: a multiple of 32, or >= k

  /// Where in its block the first row lies, and the first column (a multiple of 32 unless the block
  /// is all of k): a slice may begin inside a block. The grid then has ceil((row_offset + n) /
  /// block_n) rows and ceil((column_offset + k) / block_k) columns.
  std::int64_t row_offset = 0;
  std::int64_t column_offset = 0;
};

/// Rows [row, row + n) and columns [column, column + k) of a weight: its codes and scales where
/// they lie, the grid cut to the blocks that the slice touches.
///
/// Throws Error(kInvalidArgument) for a range outside of the weight and for columns that do not
/// start at a multiple of 32 of the stored weight (a sum over k is made of blocks of 32).
DEEPINFER_API WeightView slice(const WeightView& view, std::int64_t row, std::int64_t n,
                               std::int64_t column, std::int64_t k);

/// A checked WeightView. The viewed memory must outlive it. Codes are never copied; f32, bf16 and
/// f16 scales are copied as f32 (exact), e8m0 scales stay where they are.
class DEEPINFER_API Weight {
 public:
  Weight() = default;

  /// Checks shapes, block sizes and scales. `name` is used in messages.
  ///
  /// Throws Error(kInvalidArgument) that names what was expected and what was found: a scale grid
  /// of another shape, odd k of e2m1, a block size that is not supported, null pointers; and for
  /// f32, bf16 and f16 scales a negative, infinite or NaN value with its position.
  static Weight prepare(const WeightView& view, std::string_view name);

  const WeightView& view() const noexcept { return view_; }
  std::int64_t n() const noexcept { return view_.n; }
  std::int64_t k() const noexcept { return view_.k; }

  /// Published bytes: codes and scales.
  std::int64_t bytes() const noexcept;

  /// Private bytes held beside the published ones.
  std::int64_t private_bytes() const noexcept {
    return static_cast<std::int64_t>(f32_scales_.size() * sizeof(float));
  }

  /// The scales as f32, [scale_rows, scale_columns]; empty for e8m0 and bf16 weights.
  const std::vector<float>& f32_scales() const noexcept { return f32_scales_; }

 private:
  WeightView view_;
  std::vector<float> f32_scales_;
};

/// Bytes of one dense row of codes.
DEEPINFER_API std::int64_t code_row_bytes(Element element, std::int64_t k) noexcept;

/// Bytes of one scale; 0 for kNone.
DEEPINFER_API std::int64_t scale_bytes(ScaleType type) noexcept;

}  // namespace deepinfer
