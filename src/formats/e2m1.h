// e2m1: 1 sign, 2 exponent, 1 mantissa bit; {0, .5, 1, 1.5, 2, 3, 4, 6} and their negatives.
// A byte holds two codes: even k in the low nibble, odd k in the high nibble.
//
// Source: OCP Microscaling Formats (MX) Specification, version 1.0.
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

constexpr float kE2m1Max = 6.0F;

DEEPINFER_INLINE float decode_e2m1(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 8U) << 28;
  const std::uint32_t magnitude = code & 7U;
  if (magnitude < 2) return float_of(sign | (magnitude != 0 ? bits_of(0.5F) : 0U));
  return float_of(sign | ((magnitude << 22) + (126U << 23)));  // bias 127 - 1 = 126
}

/// Nearest, ties to the even code, saturating at +-6; the sign of zero is kept.
/// The format has no NaN: callers refuse NaN before they come here.
DEEPINFER_INLINE std::uint8_t encode_e2m1(float value) {
  const std::uint32_t u = bits_of(value);
  float magnitude = float_of(u & kMagnitudeBits);
  if (!(magnitude < kE2m1Max)) magnitude = kE2m1Max;
  // The same two roundings as in e4m3fn.h: below 1 codes are 0.5 apart, as f32 is around 2^22.
  const std::uint32_t small = bits_of(magnitude + 0x1p22F) - bits_of(0x1p22F);
  const std::uint32_t v = bits_of(magnitude);
  const std::uint32_t normal = ((v + 0x1FFFFFU + ((v >> 22) & 1U)) >> 22) - (126U << 1);
  return static_cast<std::uint8_t>(((u >> 28) & 8U) | (magnitude < 1.0F ? small : normal));
}

}  // namespace deepinfer::formats
