// A prepared weight: a view of published bytes whose shapes have been checked once, with scales in
// a form that kernels take. The codes are never copied or reordered.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/weight.h"
#include "kernels/kernel.h"

namespace deepinfer::weights {

/// Scales of rows [first, first + count) of a weight, for a kernel.
struct ScaleRows {
  const void* data;
  std::int64_t stride;  // bytes from row to row; 0: the rows share them
};

/// How kernels get the scales of this weight: the published bytes where they are e8m0 with one byte
/// per 32 k, else f32 values that scale_rows() spreads out.
kernels::Scales scales_kind(const Weight& weight) noexcept;

/// Rows of `weight` that share one row of the scale grid with row `first`, at most `limit`; 1 or
/// more. For weights without shared rows (block_n = 1) and for bf16 all of `limit`.
std::int64_t rows_per_call(const Weight& weight, std::int64_t first, std::int64_t limit) noexcept;

/// Scales of rows as f32, one per 32 k, in a kernel's lane order, padded to whole superblocks.
struct SpreadRows {
  std::int64_t count;       // 1 where the rows share their scales
  std::int64_t row_floats;  // from row to row
};

/// Bytes that spread_rows() needs for `count` rows.
std::int64_t spread_bytes(const Weight& weight, std::int64_t count) noexcept;

/// Spreads out the scales of `count` rows from `first`, all in one rows_per_call() range.
SpreadRows spread_rows(const Weight& weight, std::int64_t first, std::int64_t count,
                       const kernels::Arrangement& arrangement, float* out) noexcept;

/// Bytes of scratch that scale_rows() may need for `count` rows.
std::int64_t scale_scratch_bytes(const Weight& weight, std::int64_t count) noexcept;

/// The scales of `count` rows from `first`, all in one rows_per_call() range.
ScaleRows scale_rows(const Weight& weight, std::int64_t first, std::int64_t count,
                     const kernels::Arrangement& arrangement, void* scratch) noexcept;

}  // namespace deepinfer::weights
