// Small spaces, whole, through every kernel: all codes under all scale bytes, and all bf16 weights,
// whatever the rounding mode and flush bits of the calling thread are. One product per output is
// not zero, so no order of sums is at work and the expected value follows from the definitions.
#include <fmt/format.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstring>

#include "code_values.h"
#include "deepinfer/linear.h"
#include "formats/bf16.h"
#include "usable_isas.h"

namespace deepinfer {
namespace {

using test::usable_isas;

#if defined(__x86_64__)
/// All exceptions masked: nearest; nearest with flush-to-zero and denormals-are-zero; towards zero;
/// up; down with both flushes.
constexpr std::uint32_t kStates[] = {0x1F80, 0x9FC0, 0x7F80, 0x5F80, 0xBFC0};
std::uint32_t fp_state() { return _mm_getcsr(); }
void set_fp_state(std::uint32_t state) { _mm_setcsr(state); }
#else
constexpr std::uint32_t kStates[] = {0};
std::uint32_t fp_state() { return 0; }
void set_fp_state(std::uint32_t) {}
#endif

/// linear() as called from a thread with a foreign floating-point state, in which the Context is
/// made too: its threads inherit the state. True when the state is the same afterwards.
bool linear_under(std::uint32_t state, Isa isa, const MatrixView& x, const WeightView& view,
                  const MutableMatrixView& y) {
  const std::uint32_t before = fp_state();
  set_fp_state(state);
  {
    const Context context({.num_threads = 2, .isa = isa});
    linear(context, x, Weight::prepare(view, "w"), y, Activations::kAsIs);
  }
  const bool same = fp_state() == state;
  set_fp_state(before);
  return same;
}

/// The numbers of rows of x that reach every kernel, gemv and gemm, and their tails.
constexpr std::int64_t kM[] = {1, 4, 5, 9};

/// bf16 x: ordinary ones, all mantissa bits, results that are subnormal, overflow in the block sum,
/// overflow under the scale, and the smallest that is kept.
constexpr std::uint16_t kX[] = {0x3F80, 0xBFFF, 0x0D80, 0x7EAB, 0x5F3D, 0x0E55, 0x4049};

std::size_t x_index(std::size_t row, std::int64_t shift) {
  return (row + static_cast<std::size_t>(shift)) % std::size(kX);
}

/// Each row of x has one value that is not zero, another one elsewhere in each.
std::vector<std::uint16_t> make_x(std::int64_t m, std::int64_t k, std::int64_t shift) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(m * k), 0);
  for (std::int64_t r = 0; r < m; ++r) {
    const std::int64_t place = (5 * r + shift) % k;
    x[static_cast<std::size_t>(r * k + place)] = kX[x_index(static_cast<std::size_t>(r), shift)];
  }
  return x;
}

/// Every instruction set, number of rows and caller's state against expected(x, column); NaN has
/// one form and zero one sign.
template <class Expected>
void check_every_kernel(const WeightView& view, const Expected& expected) {
  std::vector<float> table;  // [kX, n]
  for (const std::uint16_t x : kX) {
    for (std::int64_t column = 0; column < view.n; ++column) {
      table.push_back(formats::store_f32(expected(x, column)));
    }
  }
  std::int64_t shift = 0;
  for (const Isa isa : usable_isas()) {
    for (const std::int64_t m : kM) {
      for (const std::uint32_t state : kStates) {
        ++shift;  // other values of x at other places for each state
        const std::string where = fmt::format("{} m={} state {:04x}", isa_name(isa), m, state);
        const std::vector<std::uint16_t> x = make_x(m, view.k, shift);
        std::vector<float> y(static_cast<std::size_t>(m * view.n));
        EXPECT_TRUE(linear_under(state, isa, {x.data(), FloatType::kBf16, m, view.k, 0}, view,
                                 {y.data(), FloatType::kF32, m, view.n, 0}))
            << where << ": the caller's state changed";
        for (std::size_t i = 0; i < y.size(); ++i) {
          const std::size_t row = i / static_cast<std::size_t>(view.n);
          const std::size_t column = i % static_cast<std::size_t>(view.n);
          const float want = table[x_index(row, shift) * static_cast<std::size_t>(view.n) + column];
          ASSERT_EQ(formats::bits_of(y[i]), formats::bits_of(want)) << fmt::format(
              "{} row {} column {}: {:a}, expected {:a}", where, row, column, y[i], want);
        }
      }
    }
  }
}

struct CodeCase {
  const char* name;
  Element element;
  int num_codes;
  std::int64_t block_k;  // 32: kernels read the bytes themselves; else they are given f32
};
constexpr CodeCase kCodeCases[] = {{"e4m3fn", Element::kE4m3fn, 256, 32},
                                   {"e4m3fn_f32_scales", Element::kE4m3fn, 256, 64},
                                   {"e2m1", Element::kE2m1, 16, 32},
                                   {"e2m1_f32_scales", Element::kE2m1, 16, 64}};

class code_test : public testing::TestWithParam<CodeCase> {
 protected:
  static constexpr std::int64_t kK = 32;
  static constexpr int kScales = 256;

  /// One row of w per code and scale byte; the code fills its row.
  code_test() {
    const bool pairs = GetParam().element == Element::kE2m1;
    view_.element = GetParam().element;
    view_.n = GetParam().num_codes * kScales;
    view_.k = kK;
    view_.scale_type = ScaleType::kE8m0;
    view_.scale_rows = view_.n;
    view_.scale_columns = 1;
    view_.block_k = GetParam().block_k;
    for (std::int64_t row = 0; row < view_.n; ++row) {
      const auto code = static_cast<std::uint8_t>(code_of(row));
      codes_.insert(codes_.end(), static_cast<std::size_t>(code_row_bytes(view_.element, kK)),
                    static_cast<std::uint8_t>(pairs ? code * 0x11 : code));
      scales_.push_back(static_cast<std::uint8_t>(row / GetParam().num_codes));
    }
    view_.codes = codes_.data();
    view_.scales = scales_.data();
  }

  static int code_of(std::int64_t row) { return static_cast<int>(row) % GetParam().num_codes; }

  /// d_b rounds once, which is exact unless it overflows; the fma with the scale rounds once.
  float expected(std::uint16_t x, std::int64_t column) const {
    const int code = code_of(column);
    const double w =
        view_.element == Element::kE2m1 ? test::e2m1_value(code) : test::e4m3fn_value(code);
    const auto block_sum = static_cast<float>(w * test::bf16_value(x));
    const double scale = test::e8m0_value(scales_[static_cast<std::size_t>(column)]);
    return static_cast<float>(block_sum * scale);
  }

  WeightView view_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint8_t> scales_;
};

TEST_P(code_test, every_code_under_every_scale_byte) {
  check_every_kernel(view_,
                     [this](std::uint16_t x, std::int64_t column) { return expected(x, column); });
}

INSTANTIATE_TEST_SUITE_P(formats, code_test, testing::ValuesIn(kCodeCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

/// A product of two bf16 numbers is exact; subnormal operands count as zero and so does a result
/// below 2^-126.
float flushed_product(double w, double x) {
  const auto daz = [](double v) { return std::fabs(v) < 0x1p-126 ? 0 * v : v; };
  const double product = daz(w) * daz(x);
  return std::fabs(product) < 0x1p-126 ? 0.0F : static_cast<float>(product);
}

TEST(bf16_test, every_weight_of_16_bits) {
  constexpr std::int64_t kK = 34;  // one whole chunk of 32 and a short one
  std::vector<std::uint16_t> codes;
  WeightView view;
  view.n = 1 << 16;
  view.k = kK;
  for (std::int64_t row = 0; row < view.n; ++row) {
    codes.insert(codes.end(), kK, static_cast<std::uint16_t>(row));
  }
  view.codes = codes.data();
  check_every_kernel(view, [](std::uint16_t x, std::int64_t column) {
    // Where w is infinite or NaN, the zeros of x give NaN: infinity * 0.
    const double w = test::bf16_value(static_cast<int>(column));
    return std::isfinite(w) ? flushed_product(w, test::bf16_value(x))
                            : std::numeric_limits<float>::quiet_NaN();
  });
}

/// One pair of bf16 products next to the smallest normal number. The odd product, 2^-126, comes
/// first; then the even one is taken away. Rounded to 24 bits with unbounded exponent, 2^-126 -
/// 2^-150 is below 2^-126 and becomes zero, though rounding to a subnormal's bits would lift it to
/// 2^-126; 2^-126 - 2^-152 rounds up to 2^-126 and stays.
TEST(bf16_test, results_are_flushed_after_rounding_on_every_isa) {
  const auto bf16_power = [](int exponent) {
    return static_cast<std::uint16_t>((127 + exponent) << 7);
  };
  struct Case {
    int even_exponent;
    float expected;
  };
  for (const Case& c : {Case{-149, 0.0F}, Case{-150, 0.0F}, Case{-152, 0x1p-126F}}) {
    std::vector<std::uint16_t> codes(32, 0);
    codes[1] = bf16_power(-60);
    codes[0] = static_cast<std::uint16_t>(bf16_power(c.even_exponent + 76) | 0x8000);
    std::vector<std::uint16_t> x(32, 0);
    x[1] = bf16_power(-66);
    x[0] = bf16_power(-76);
    WeightView view;
    view.codes = codes.data();
    view.n = 1;
    view.k = 32;
    const Weight w = Weight::prepare(view, "w");
    for (const Isa isa : usable_isas()) {
      const Context context({.num_threads = 1, .isa = isa});
      float y = -1.0F;
      linear(context, {x.data(), FloatType::kBf16, 1, 32, 0}, w, {&y, FloatType::kF32, 1, 1, 0});
      EXPECT_EQ(y, c.expected) << isa_name(isa) << " 2^" << c.even_exponent;
    }
  }
}

}  // namespace
}  // namespace deepinfer
