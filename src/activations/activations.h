// Rows of x on their way into a kernel: quantized (or not), or decoded from codes, then arranged in
// the kernel's order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepinfer/linear.h"
#include "deepinfer/quantized.h"
#include "kernels/kernel.h"

namespace deepinfer::activations {

/// Bytes of one row of k values in a kernel's arrangement.
std::int64_t arranged_row_bytes(std::int64_t k, const kernels::Arrangement& arrangement) noexcept;

/// Where arranged rows come from and go to: row i, at data + i * stride bytes, is row gather[i] of
/// x, or nothing if that is negative; without `gather` it is row i.
struct Target {
  const kernels::Arrangement* arrangement;
  std::byte* data;
  std::int64_t stride;
  const std::int32_t* gather;

  std::int64_t source(std::int64_t i) const noexcept { return gather != nullptr ? gather[i] : i; }
};

/// Quantizes and arranges rows [begin, end) of the target. `scratch`: k values.
void arrange_rows(const kernels::RowKernels& rows, const MatrixView& x, Activations activations,
                  const Target& target, std::int64_t begin, std::int64_t end,
                  std::uint16_t* scratch) noexcept;

/// Decodes and arranges rows [begin, end) of the target. With `requantize` a row is decode(code) *
/// scale rounded once to bf16 and quantized again at 224. Without, scales that are powers of two
/// from 2^-91 to 2^119 are inside the values, others count as 1 there, and foreign[row] says
/// whether the row has such a scale: then foreign_scales() holds what its blocks are still to be
/// multiplied by. `scratch`: k values.
void arrange_codes(const kernels::RowKernels& rows, const QuantizedView& x, bool requantize,
                   const Target& target, std::int64_t begin, std::int64_t end,
                   std::uint16_t* scratch, std::uint8_t* foreign) noexcept;

/// The scales of `row` that are not inside its values, 1 for all others: one per 32 k, in the
/// kernel's lane order, padded to whole superblocks.
void foreign_scales(const QuantizedView& x, std::int64_t row,
                    const kernels::Arrangement& arrangement, float* out) noexcept;

/// Scale of block `column` of a row, as f32.
float scale_at(const QuantizedView& x, std::int64_t row, std::int64_t column) noexcept;

/// value as bf16, rounded once: nearest even on the exact double.
std::uint16_t round_to_bf16(double value) noexcept;

}  // namespace deepinfer::activations
