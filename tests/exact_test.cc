// The reference kernels against exact arithmetic, within a bound that is derived, not measured.
//
// Everything that is multiplied is a dyadic rational, so the exact sum is an integer over a power
// of two. With u = 2^-24, gamma(N) = N u / (1 - N u), and one rounding per fused multiply-add
// (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1):
//
//   A term scale * w * x of y goes through at most
//     32               roundings in its block sum d_b (fma from +0, none before),
//     ceil(blocks/16)  in its lane, A = fma(d_b, scale, A): the product itself is not rounded,
//     4                in the tree over 16 lanes,
//     1                when the bias is added,
//   so with N = 37 + ceil(blocks/16):   |y - exact| <= gamma(N) * S,   S = sum |scale w x| + |bias|
//
//   bf16 weights have no blocks; a lane takes two terms of every 32:  N = 2 ceil(k/32) + 4 + 1.
//
//   A result below 2^-126 has an absolute error instead of a relative one. In d_b there is none,
//   for x is 0 or at least 2^-100. A lane's fma errs by at most 2^-150; sums of floats that are
//   subnormal are exact, so the tree and the bias add nothing:  16 ceil(blocks/16) 2^-150 in all.
//   With bf16 weights each of 32 ceil(k/32) steps may flush, 2^-126 each. Later roundings enlarge
//   such an error by less than 1 + gamma(N).
//
// Since gamma(N) = N / (2^24 - N) and 1 + gamma(N) = 2^24 / (2^24 - N), the bound is compared in
// integers:  |y - exact| (2^24 - N) <= N S + 2^24 E,  E the sum of absolute errors.
#include <fmt/format.h>
#include <gmpxx.h>
#include <gtest/gtest.h>

#include <cstring>

#include "code_values.h"
#include "deepinfer/linear.h"
#include "formats/bits.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::FormatCase;
using test::Random;
using test::TestWeight;

// Numbers are integers times 2^-kFraction; the smallest factors are 2^-133, 2^-133 (bf16 weights)
// and 2^-107, 2^-9, 2^-149 (x, code, scale).
constexpr int kFraction = 300;

/// `value` is a dyadic rational with at most 53 bits.
mpz_class fixed_point(double value) { return mpz_class(std::ldexp(value, kFraction)); }

double code_value(const TestWeight& t, std::int64_t row, std::int64_t k) {
  const std::uint8_t* codes = t.codes.data() + row * code_row_bytes(t.view.element, t.view.k);
  switch (t.view.element) {
    case Element::kBf16:
      return test::bf16_value(codes[2 * k] | (codes[2 * k + 1] << 8));
    case Element::kE4m3fn:
      return test::e4m3fn_value(codes[k]);
    default:
      return test::e2m1_value((codes[k / 2] >> (4 * (k % 2))) & 15);
  }
}

double scale_value(const TestWeight& t, std::int64_t row, std::int64_t k) {
  const WeightView& v = t.view;
  const std::int64_t at = row / v.block_n * v.scale_columns + k / v.block_k;
  const std::uint8_t* scales = t.scales.data();
  float f32 = 0;
  std::uint16_t f16 = 0;
  switch (v.scale_type) {
    case ScaleType::kNone:
      return 1;
    case ScaleType::kE8m0:
      return test::e8m0_value(scales[at]);
    case ScaleType::kF32:
      std::memcpy(&f32, scales + 4 * at, 4);
      return f32;
    case ScaleType::kBf16:
      return test::bf16_value(scales[2 * at] | (scales[2 * at + 1] << 8));
    default:
      std::memcpy(&f16, scales + 2 * at, 2);  // normal and positive: random_weight draws no others
      return std::ldexp(1024 + (f16 & 0x3FF), (f16 >> 10) - 25);
  }
}

struct Exact {
  mpz_class sum;        // of scale * w * x, and bias
  mpz_class magnitude;  // the same of absolute values
};

Exact exact_dot(const TestWeight& t, const std::uint16_t* x, std::int64_t row, float bias) {
  const bool codes = t.view.element != Element::kBf16;
  const double tiny = codes ? 0x1p-100 : 0x1p-126;  // the contract takes smaller ones as zero
  Exact exact = {fixed_point(bias), fixed_point(std::fabs(bias))};
  for (std::int64_t k = 0; k < t.view.k; ++k) {
    const double xk = test::bf16_value(x[k]);
    const double wk = code_value(t, row, k);
    if (std::fabs(xk) < tiny || (!codes && std::fabs(wk) < tiny)) continue;
    const mpz_class term = fixed_point(wk * xk * scale_value(t, row, k));  // 4 + 8 + 24 bits
    exact.sum += term;
    exact.magnitude += abs(term);
  }
  return exact;
}

/// [m, k] of bf16; `kind` 0: exponents spread over +-20, 1: every value of a 1x32 quantization at
/// 224 of such x (4 bits each), 2: so small that results are subnormal.
std::vector<std::uint16_t> make_x(Random& random, std::int64_t count, int kind,
                                  const FormatCase& format) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::uint16_t& v : x) {
    v = random.bf16(kind == 1 ? 3 : 20);
    if (kind == 1) v &= 0xFFF0U;
    // Down to 2^-99 where codes are block-scaled, to 2^-120 where weights are bf16.
    const std::uint64_t lowest = format.element == Element::kBf16 ? 7 : 28;
    if (kind == 2) v = static_cast<std::uint16_t>((v & 0x807FU) | ((lowest + v % 20) << 7));
  }
  return x;
}

/// Scales of 2^-45 and less, so that products with x from above are subnormal.
void shrink_scales(TestWeight& t) {
  const std::int64_t bytes = scale_bytes(t.view.scale_type);
  for (std::size_t i = 0; bytes != 0 && i < t.scales.size() / static_cast<std::size_t>(bytes);
       ++i) {
    std::uint8_t* last = t.scales.data() + (i + 1) * static_cast<std::size_t>(bytes) - 1;
    switch (t.view.scale_type) {
      case ScaleType::kE8m0:
        *last = static_cast<std::uint8_t>(70 + *last % 16);
        break;
      case ScaleType::kF16:
        *last = 0x04;  // 2^-14, the smallest normal one
        break;
      default:
        *last = static_cast<std::uint8_t>(0x20 + *last % 8);  // f32, bf16: 2^-63 and up
        break;
    }
  }
}

struct Part {
  std::int64_t m, n, k;
  int kind;
};
constexpr Part kParts[] = {{3, 40, 576, 0}, {2, 9, 1074, 0}, {1, 3, 2880, 0}, {3, 40, 576, 1},
                           {2, 9, 1074, 1}, {2, 5, 2, 0},    {3, 40, 608, 2}, {2, 33, 66, 2}};

/// N and E of the head of this file; E in fixed point.
struct Bound {
  std::int64_t roundings;
  mpz_class absolute;
};

Bound bound_of(const WeightView& v) {
  const std::int64_t blocks = (v.k + 31) / 32;
  if (v.element == Element::kBf16) {
    return {2 * blocks + 5, mpz_class(32 * blocks) * fixed_point(0x1p-126)};
  }
  const std::int64_t turns = (blocks + 15) / 16;
  return {37 + turns, mpz_class(16 * turns) * fixed_point(0x1p-150)};
}

class exact_test : public testing::TestWithParam<FormatCase> {};

TEST_P(exact_test, the_reference_is_within_the_bound_of_its_roundings) {
  const Context reference({.num_threads = 1, .isa = Isa::kRef});
  Random random(3);
  double worst = 0;
  int inexact = 0;
  for (const Part& part : kParts) {
    TestWeight t = test::random_weight(random, GetParam(), part.n, part.k);
    if (part.kind == 2) shrink_scales(t);
    const Weight w = t.prepare();
    const std::vector<std::uint16_t> x = make_x(random, part.m * part.k, part.kind, GetParam());
    std::vector<float> bias(static_cast<std::size_t>(part.n), 0.0F);
    for (float& b : bias)
      b = part.kind == 2 ? 0.0F : static_cast<float>(test::bf16_value(random.bf16(20)));
    std::vector<float> y(static_cast<std::size_t>(part.m * part.n));
    linear(reference, {x.data(), FloatType::kBf16, part.m, part.k, 0}, w,
           {y.data(), FloatType::kF32, part.m, part.n, 0}, Activations::kAsIs, bias.data());
    const Bound bound = bound_of(w.view());
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / part.n;
      const auto column = static_cast<std::int64_t>(i) % part.n;
      const Exact exact =
          exact_dot(t, x.data() + row * part.k, column, bias[static_cast<std::size_t>(column)]);
      const mpz_class error = abs(fixed_point(y[i]) - exact.sum) * ((1 << 24) - bound.roundings);
      const mpz_class allowed = bound.roundings * exact.magnitude + (bound.absolute << 24);
      ASSERT_LE(error, allowed) << fmt::format("k={} kind {} row {} column {}: {}", part.k,
                                               part.kind, row, column, y[i]);
      inexact += error != 0 ? 1 : 0;
      if (allowed != 0) worst = std::max(worst, mpq_class(error, allowed).get_d());
    }
  }
  EXPECT_GT(inexact, 50) << "sums without rounding would show nothing";
  std::printf("%s: largest error %.4f of the bound\n", GetParam().name, worst);
}

INSTANTIATE_TEST_SUITE_P(formats, exact_test, testing::ValuesIn(test::kFormatCases),
                         test::name_of_format);

}  // namespace
}  // namespace deepinfer
