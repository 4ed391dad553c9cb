// Choosing a power-of-two block scale: the smallest s = 2^e with amax <= limit * s.
//
// The rule is DeepSeek's and NVIDIA's ("round up amax / limit"); it never saturates. It works on
// the bits, because exp2(ceil(log2(r))) in floating point is wrong next to powers of two.
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

/// The largest value that a block may reach after division by its scale, (1 + fraction) *
/// 2^exponent.
struct ScaleLimit {
  std::uint32_t mantissa;  // the 23 mantissa bits of the limit
  std::int32_t exponent;
  float floor;  // amax is at least this
};

constexpr ScaleLimit kLimit224 = {0x600000U, 7, 1e-4F};           // activations, the default
constexpr ScaleLimit kLimit448 = {0x600000U, 8, 1e-4F};           // e4m3fn weights
constexpr ScaleLimit kLimit6 = {0x400000U, 2, 6.0F * 0x1p-126F};  // e2m1 weights

/// The e8m0 byte of the scale for a finite `amax` >= 0.
///
/// Worked example, limit 448 = 1.75 * 2^8: amax 14336 = 1.75 * 2^13 has mantissa bits 0x600000;
/// adding 0x7FFFFF - 0x600000 does not carry, so the scale is 2^(13 - 8), byte 132. The next larger
/// f32 carries into the exponent: byte 133.
DEEPINFER_INLINE std::int32_t choose_scale_byte(float amax, ScaleLimit limit) {
  const float a = amax < limit.floor ? limit.floor : amax;
  const std::uint32_t exponent = (bits_of(a) + (0x7FFFFFU - limit.mantissa)) >> 23;
  return static_cast<std::int32_t>(exponent) - limit.exponent;
}

}  // namespace deepinfer::formats
