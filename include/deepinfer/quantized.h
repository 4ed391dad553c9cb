// Activations that somebody else has quantized: e4m3fn codes with one scale per row and block.
#pragma once

#include <cstdint>

#include "deepinfer/format.h"

namespace deepinfer {

/// Rows of e4m3fn codes [m, k] with scales [m, ceil(k / block_k)]: x = decode(code) * scale.
///
/// A scale that is a power of two from 2^-91 to 2^119 is multiplied into the codes (exact). Every
/// other scale (zero, negative, subnormal, NaN, not a power of two) is computed as it is: it
/// multiplies the weight's scale in f32, block by block.
struct QuantizedView {
  const void* codes = nullptr;              ///< [m, k]
  std::int64_t rows = 0;                    ///< m
  std::int64_t columns = 0;                 ///< k
  std::int64_t stride = 0;                  ///< codes from row to row; 0: dense
  ScaleType scale_type = ScaleType::kE8m0;  ///< kE8m0 or kF32
  const void* scales = nullptr;             ///< at any address
  std::int64_t scale_rows = 0;              ///< as stored: m
  std::int64_t scale_columns = 0;           ///< as stored; those past ceil(k / block_k) are padding
  std::int64_t scale_stride = 0;            ///< scales from row to row; 0: scale_columns
  std::int64_t scale_column_stride = 1;     ///< scales from column to column
  std::int64_t block_k = 32;                ///< k-values that share a scale: 32 or 128
};

}  // namespace deepinfer
