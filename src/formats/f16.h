// IEEE half precision, read only: some checkpoints store block scales in it.
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

DEEPINFER_INLINE float decode_f16(std::uint16_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000U) << 16;
  const std::uint32_t exponent = (code >> 10) & 0x1FU;
  const std::uint32_t mantissa = code & 0x3FFU;
  if (exponent == 0) {  // mantissa * 2^-24, exact
    return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24F));
  }
  if (exponent == 31) {
    return float_of(sign | (mantissa == 0 ? kInfinityBits : kNanBits));
  }
  return float_of(sign | ((exponent + 112U) << 23) | (mantissa << 13));  // bias 127 - 15 = 112
}

}  // namespace deepinfer::formats
