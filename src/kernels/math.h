// The elementary functions that results depend on. libm is not used: its bits differ between
// versions and CPUs. Every fused multiply-add is written by name; nothing else is contracted.
#pragma once

#include "formats/bits.h"

namespace deepinfer::kernels {

DEEPINFER_INLINE float fma32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEEPINFER_INLINE double fma64(double a, double b, double c) { return __builtin_fma(a, b, c); }

/// e^x in f32, branch-free. Largest error 1.0 ulp (tests/math_test.cc walks all f32);
/// NaN gives NaN, below -104 gives +0, above 88.73 infinity, subnormal results are rounded once.
///
/// x = n ln2 + r with |r| <= ln2 / 2; e^r by a polynomial;
/// 2^n in two factors, so that neither leaves the range of normal numbers.
DEEPINFER_INLINE float exp32(float x) {
  float v = x > 89.0F ? 89.0F : x;
  v = v < -105.0F ? -105.0F : v;
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kRound = 0x1.8p23F;       // adding it rounds to an integer
  constexpr float kLn2Hi = 0x1.62e400p-1F;  // 15 bits: n * kLn2Hi is exact
  constexpr float kLn2Lo = 0x1.7f7d1cp-20F;
  const float shifted = fma32(v, kLog2E, kRound);
  const float n = shifted - kRound;
  float r = fma32(n, -kLn2Hi, v);
  r = fma32(n, -kLn2Lo, r);
  float p = 0x1.6d110ap-10F;  // (e^r - 1 - r) / r^2, Chebyshev fit on |r| <= ln2 / 2
  p = fma32(p, r, 0x1.120b6ep-7F);
  p = fma32(p, r, 0x1.55551ap-5F);
  p = fma32(p, r, 0x1.5554dcp-3F);
  p = fma32(p, r, 0x1.0p-1F);
  p = fma32(p, r, 1.0F);
  p = fma32(p, r, 1.0F);
  const std::uint32_t exponent = formats::bits_of(shifted) - formats::bits_of(kRound);
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(exponent) >> 1);
  const float scale1 = formats::float_of((half + 127U) << 23);
  const float scale2 = formats::float_of((exponent - half + 127U) << 23);
  const float result = p * scale1 * scale2;
  return x != x ? formats::float_of(formats::kNanBits) : result;
}

/// x * sigmoid(x)
DEEPINFER_INLINE float silu32(float x) { return x / (1.0F + exp32(-x)); }

/// Natural logarithm of a positive, finite, normal double; error below 4e-16 * max(1, |ln x|).
DEEPINFER_INLINE double log64(double x) {
  std::uint64_t u = __builtin_bit_cast(std::uint64_t, x);
  std::int64_t exponent = static_cast<std::int64_t>(u >> 52) - 1023;
  u = (u & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL;
  double m = __builtin_bit_cast(double, u);
  if (m > 0x1.6a09e667f3bcdp+0) {  // sqrt(2): keep m around 1
    m *= 0.5;
    exponent += 1;
  }
  // ln m = 2 atanh(z), z = (m - 1) / (m + 1), |z| < 0.172: z^23 / 23 is below 2^-60.
  const double z = (m - 1.0) / (m + 1.0);
  const double z2 = z * z;
  double p = 0.0;
  for (int i = 21; i >= 3; i -= 2) p = fma64(p, z2, 1.0 / i);
  p = p * z2;
  constexpr double kLn2Hi = 0x1.62e42fefa3800p-1;
  constexpr double kLn2Lo = 0x1.ef35793c76730p-45;
  const double n = static_cast<double>(exponent);
  const double low = fma64(2.0 * z, p, n * kLn2Lo);
  return fma64(n, kLn2Hi, 2.0 * z + low);
}

/// e^x in double for |x| < 700; relative error below 1e-15.
DEEPINFER_INLINE double exp64(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kRound = 0x1.8p52;
  constexpr double kLn2Hi = 0x1.62e42fefa3800p-1;
  constexpr double kLn2Lo = 0x1.ef35793c76730p-45;
  const double shifted = fma64(x, kLog2E, kRound);
  const double n = shifted - kRound;
  double r = fma64(n, -kLn2Hi, x);
  r = fma64(n, -kLn2Lo, r);
  double p = 1.0;  // Horner over 1/i: e^r = 1 + r (1 + r/2 (1 + r/3 (...)))
  for (int i = 14; i >= 1; --i) p = fma64(p * r, 1.0 / i, 1.0);
  const std::uint64_t exponent =
      __builtin_bit_cast(std::uint64_t, shifted) - __builtin_bit_cast(std::uint64_t, kRound);
  return p * __builtin_bit_cast(double, (exponent + 1023U) << 52);
}

struct SinCos {
  double sin;
  double cos;
};

/// Sine and cosine of x for 0 <= x < 2^30; absolute error below 1e-13 there, below 1e-15 for
/// x < 2^20, so that rounding to f32 is right but for rare near-ties.
DEEPINFER_INLINE SinCos sincos64(double x) {
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kRound = 0x1.8p52;
  constexpr double kPio2Hi = 0x1.921fb54400000p+0;  // 33 bits: n * kPio2Hi is nearly exact
  constexpr double kPio2Mid = 0x1.0b4611a600000p-34;
  constexpr double kPio2Lo = 0x1.3198a2e037073p-69;
  const double shifted = fma64(x, kTwoOverPi, kRound);
  const double n = shifted - kRound;
  double r = fma64(n, -kPio2Hi, x);
  r = fma64(n, -kPio2Mid, r);
  r = fma64(n, -kPio2Lo, r);
  const double r2 = r * r;
  double s = 1.0;  // sin r = r (1 - r2/(2*3) (1 - r2/(4*5) (...)))
  for (int i = 18; i >= 2; i -= 2) s = fma64(s * r2, -1.0 / (i * (i + 1)), 1.0);
  s = s * r;
  double c = 1.0;  // cos r = 1 - r2/(1*2) (1 - r2/(3*4) (...))
  for (int i = 17; i >= 1; i -= 2) c = fma64(c * r2, -1.0 / (i * (i + 1)), 1.0);
  const std::uint64_t quadrant = __builtin_bit_cast(std::uint64_t, shifted) & 3U;
  const double sin_part = (quadrant & 1U) != 0 ? c : s;
  const double cos_part = (quadrant & 1U) != 0 ? s : c;
  const bool negative_sin = (quadrant & 2U) != 0;
  const bool negative_cos = ((quadrant + 1U) & 2U) != 0;
  return {negative_sin ? -sin_part : sin_part, negative_cos ? -cos_part : cos_part};
}

}  // namespace deepinfer::kernels
