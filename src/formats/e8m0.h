// e8m0: a scale of 8 exponent bits, 2^(b - 127). Byte 0 is 2^-127 (an f32 subnormal, not zero) and
// byte 255 is NaN: shifting the byte into the exponent field gets both wrong.
//
// Source: OCP Microscaling Formats (MX) Specification, version 1.0. DeepSeek and PTX say ue8m0.
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

constexpr std::uint8_t kE8m0One = 127;
constexpr std::uint8_t kE8m0Nan = 255;
constexpr std::uint32_t kE8m0ByteZeroBits = 0x00400000U;  // 2^-127 as f32

DEEPINFER_INLINE float decode_e8m0(std::uint8_t byte) {
  if (byte == 0) return float_of(kE8m0ByteZeroBits);
  if (byte == kE8m0Nan) return float_of(kNanBits);
  return float_of(static_cast<std::uint32_t>(byte) << 23);
}

}  // namespace deepinfer::formats
