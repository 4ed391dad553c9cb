// The names of number formats: plain enumerations that every other header may include.
#pragma once

#include <cstdint>

namespace deepinfer {

/// What one code of a weight means.
enum class Element : std::uint8_t {
  kBf16,    ///< 16 bits, the upper half of an f32
  kE4m3fn,  ///< 8 bits, 1-4-3, largest value 448, no infinity
  kE2m1,    ///< 4 bits, two in a byte, even k in the low nibble
};

/// How the scales of a weight are stored. A scale is a multiplier: w = decode(code) * scale.
enum class ScaleType : std::uint8_t {
  kNone,  ///< no scales (bf16 weights)
  kE8m0,  ///< one byte b, 2^(b-127); 255 is NaN
  kF32,
  kBf16,
  kF16,
};

/// Instruction sets that kernels are written for; names are those of `DEEPINFER_ISA`.
enum class Isa : std::uint8_t {
  kRef,         ///< "ref": portable C++, defines the bits
  kAvx2,        ///< "avx2": AVX2, FMA, F16C
  kAvx512bf16,  ///< "avx512bf16": AVX-512 F, BW, DQ, VL, VBMI, BF16
};

}  // namespace deepinfer
