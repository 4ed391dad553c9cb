// Reading a float's bits, for headers that instruction-set files include.
//
// Everything here is static and always inlined: an ordinary inline function would become a weak
// symbol, and the linker might keep the copy that was compiled for AVX-512 (tools/check_tree.py
// looks for such symbols).
#pragma once

#include <cstdint>

#define DEEPINFER_INLINE static inline __attribute__((always_inline))

namespace deepinfer::formats {

DEEPINFER_INLINE std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}

DEEPINFER_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr std::uint32_t kSignBit = 0x80000000U;
constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFFU;
constexpr std::uint32_t kInfinityBits = 0x7F800000U;
constexpr std::uint32_t kNanBits = 0x7FC00000U;  // the only NaN that results carry

}  // namespace deepinfer::formats
