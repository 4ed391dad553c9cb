// bf16, the upper half of an f32, and the two ways to write a result ("store").
#pragma once

#include "formats/bits.h"

namespace deepinfer::formats {

constexpr std::uint16_t kBf16Nan = 0x7FC0;

DEEPINFER_INLINE float decode_bf16(std::uint16_t code) {
  return float_of(static_cast<std::uint32_t>(code) << 16);
}

/// Nearest even on the bits of the f32: subnormals are kept, the sign of zero is kept, any NaN is
/// 0x7FC0. (`vcvtneps2bf16` flushes subnormals and keeps NaN payloads.)
DEEPINFER_INLINE std::uint16_t encode_bf16(float value) {
  const std::uint32_t u = bits_of(value);
  const std::uint32_t rounded = (u + 0x7FFFU + ((u >> 16) & 1U)) >> 16;
  const bool nan = (u & kMagnitudeBits) > kInfinityBits;
  return static_cast<std::uint16_t>(nan ? kBf16Nan : rounded);
}

/// How a result becomes bf16: as encode_bf16, and a result that rounds to zero is +0.
DEEPINFER_INLINE std::uint16_t store_bf16(float value) {
  const std::uint16_t code = encode_bf16(value);
  return static_cast<std::uint16_t>((code & 0x7FFFU) == 0 ? 0 : code);
}

/// How a result becomes f32: any NaN is 0x7FC00000, any zero is +0.
DEEPINFER_INLINE float store_f32(float value) {
  const std::uint32_t u = bits_of(value);
  const std::uint32_t magnitude = u & kMagnitudeBits;
  const std::uint32_t number = magnitude == 0 ? 0U : u;
  return float_of(magnitude > kInfinityBits ? kNanBits : number);
}

}  // namespace deepinfer::formats
