// Rows of numbers to codes and power-of-two block scales, as docs/determinism.md defines it:
//
//   a = max(max |w|, floor)          over a block of block_n rows and block_k columns
//   s = smallest power of two with a <= limit * s
//   code = encode(w / s), nearest even; the division is exact, nothing saturates
//
// limit 448 for e4m3fn, 6 for e2m1. Blocks at the edge of the matrix are smaller.
#pragma once

#include <cstdint>
#include <optional>

#include "deepinfer/format.h"
#include "deepinfer/tensor.h"
#include "formats/scale.h"

namespace deepinfer::weights {

struct BlockFormat {
  Element element = Element::kE4m3fn;
  std::int64_t block_n = 1;
  std::int64_t block_k = 32;
  formats::ScaleLimit limit = formats::kLimit448;
};

/// A matrix [n, k] of numbers in bf16, f16 or f32, dense.
struct NumberMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kBf16;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

/// A number that cannot be quantized: NaN, infinite, or (bf16) beyond the largest finite one.
struct BadNumber {
  std::int64_t row;
  std::int64_t column;
  float value;
};

/// Floats of scratch that the functions below need.
std::int64_t scratch_floats(const NumberMatrix& matrix, const BlockFormat& format) noexcept;

/// Quantizes rows [first, first + count); `first` is a multiple of block_n, and so is `count` but
/// at the end of the matrix. Codes [count, code_row_bytes] and scales [ceil(count / block_n),
/// ceil(k / block_k)] are written densely. Returns the first bad number, in which case the output
/// means nothing.
std::optional<BadNumber> quantize_rows(const NumberMatrix& matrix, std::int64_t first,
                                       std::int64_t count, const BlockFormat& format,
                                       std::uint8_t* codes, std::uint8_t* scales,
                                       float* scratch) noexcept;

/// Rounds rows to bf16, nearest even, into `out` [count, k].
std::optional<BadNumber> round_rows_to_bf16(const NumberMatrix& matrix, std::int64_t first,
                                            std::int64_t count, std::uint8_t* out,
                                            float* scratch) noexcept;

}  // namespace deepinfer::weights
