// e4m3fn: 1 sign, 4 exponent, 3 mantissa bits, bias 7; no infinity; 0x7F and 0xFF are NaN.
//
//   exponent 0:  m * 2^-9          otherwise:  (8 + m) * 2^(e - 10)        largest: 448 = 0x7E
//
// Source: OCP 8-bit Floating Point Specification (OFP8), revision 1.0.
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

constexpr float kE4m3fnMax = 448.0F;
constexpr std::uint8_t kE4m3fnNan = 0x7F;

DEEPINFER_INLINE float decode_e4m3fn(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == kE4m3fnNan) return float_of(sign | kNanBits);
  if (magnitude < 8) {  // m * 2^-9; the cast is exact
    return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-9F));
  }
  return float_of(sign | ((magnitude << 20) + (120U << 23)));  // bias 127 - 7 = 120
}

/// |value| rounded to the nearest e4m3fn magnitude, ties to the even code; for |value| <= 448.
/// Branch-free, so that a loop over it vectorizes.
DEEPINFER_INLINE std::uint32_t round_e4m3fn_magnitude(float magnitude) {
  // Below 2^-6 codes are 2^-9 apart, as f32 is around 2^14: adding 2^14 rounds, and the low bits of
  // the sum are the code. Worked example: 3.5 * 2^-9 + 2^14 -> 2^14 + 4 * 2^-9, code 4 (even).
  const std::uint32_t small = bits_of(magnitude + 0x1p14F) - bits_of(0x1p14F);
  // Above, drop 20 of 23 mantissa bits: add just under a half, plus one if the last kept bit is
  // odd.
  const std::uint32_t u = bits_of(magnitude);
  const std::uint32_t normal = ((u + 0x7FFFFU + ((u >> 20) & 1U)) >> 20) - (120U << 3);
  return magnitude < 0x1p-6F ? small : normal;
}

/// Nearest, ties to the even code, saturating at +-448; the sign of zero is kept; NaN is 0x7F.
DEEPINFER_INLINE std::uint8_t encode_e4m3fn(float value) {
  const std::uint32_t u = bits_of(value);
  if ((u & kMagnitudeBits) > kInfinityBits) return kE4m3fnNan;
  float magnitude = float_of(u & kMagnitudeBits);
  if (magnitude > kE4m3fnMax) magnitude = kE4m3fnMax;
  return static_cast<std::uint8_t>(((u >> 24) & 0x80U) | round_e4m3fn_magnitude(magnitude));
}

}  // namespace deepinfer::formats
