// Rows of x on their way into a kernel: quantized (or not), then arranged in the kernel's order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepinfer/linear.h"
#include "kernels/kernel.h"

namespace deepinfer::activations {

/// Bytes of one row of k values in a kernel's arrangement.
std::int64_t arranged_row_bytes(std::int64_t k, const kernels::Arrangement& arrangement) noexcept;

/// Quantizes and arranges rows [begin, end) of x into `out` (row i at out + i * stride bytes).
/// `scratch`: k values.
void arrange_rows(const kernels::RowKernels& rows, const MatrixView& x, Activations activations,
                  const kernels::Arrangement& arrangement, std::int64_t begin, std::int64_t end,
                  std::uint16_t* scratch, std::byte* out, std::int64_t stride) noexcept;

}  // namespace deepinfer::activations
