// The elementary functions against libm in double, which is exact to far below an f32 ulp. The
// default run walks every 251st float; DEEPINFER_TEST_FULL=1 walks all of them.
#include "kernels/math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "random_data.h"

namespace deepinfer::kernels {
namespace {

std::uint32_t step() { return std::getenv("DEEPINFER_TEST_FULL") != nullptr ? 1 : 251; }

/// Error of `got` in units of the last place of the f32 nearest to `exact`.
double error_in_ulp(float got, double exact) {
  const float nearest = static_cast<float>(exact);
  const double ulp =
      std::max(static_cast<double>(
                   std::nextafterf(std::fabs(nearest), std::numeric_limits<float>::infinity()) -
                   std::fabs(nearest)),
               0x1p-149);
  return std::fabs(static_cast<double>(got) - exact) / ulp;
}

TEST(math_test, exp32_is_within_one_ulp) {
  double worst = 0;
  float worst_at = 0;
  const float limits[2] = {88.72F, -103.9F};
  for (const float limit : limits) {
    const std::uint32_t sign = formats::bits_of(limit) & formats::kSignBit;
    const std::uint32_t last = formats::bits_of(limit);
    for (std::uint32_t bits = sign; bits <= last; bits += step()) {
      const float x = formats::float_of(bits);
      const double error = error_in_ulp(exp32(x), std::exp(static_cast<double>(x)));
      if (error > worst) {
        worst = error;
        worst_at = x;
      }
    }
  }
  EXPECT_LT(worst, 1.0) << "at " << worst_at;
  RecordProperty("worst_ulp", std::to_string(worst));
  std::printf("exp32: largest error %.4f ulp at %a\n", worst, static_cast<double>(worst_at));
}

TEST(math_test, exp32_at_its_ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp32(0.0F), 1.0F);
  EXPECT_EQ(exp32(-0.0F), 1.0F);
  EXPECT_EQ(exp32(-kInfinity), 0.0F);
  EXPECT_EQ(exp32(-104.0F), 0.0F);
  EXPECT_EQ(exp32(89.0F), kInfinity);
  EXPECT_EQ(exp32(kInfinity), kInfinity);
  EXPECT_EQ(formats::bits_of(exp32(-std::numeric_limits<float>::quiet_NaN())), formats::kNanBits);
}

TEST(math_test, silu32_is_within_three_ulp) {
  double worst = 0;
  for (std::uint32_t code = 0; code < 65536; ++code) {  // its inputs are bf16
    const float x = formats::float_of(code << 16);
    if (!(std::fabs(x) < 80.0F)) continue;
    const double exact = static_cast<double>(x) / (1.0 + std::exp(-static_cast<double>(x)));
    worst = std::max(worst, error_in_ulp(silu32(x), exact));
  }
  EXPECT_LT(worst, 3.0);
}

TEST(math_test, log64_and_exp64_are_close_to_libm) {
  test::Random random(7);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::ldexp(1.0 + static_cast<double>(random.next() >> 12) * 0x1p-52,
                                static_cast<int>(random.below(200)) - 100);
    const double log = std::log(x);
    ASSERT_NEAR(log64(x), log, 4e-16 * std::max(1.0, std::fabs(log))) << x;
    ASSERT_NEAR(exp64(log) / std::exp(log), 1.0, 1e-15) << x;
  }
}

TEST(math_test, sincos64_is_exact_enough_for_f32) {
  const auto check = [](float x, double tolerance) {
    const SinCos value = sincos64(static_cast<double>(x));
    ASSERT_NEAR(value.sin, std::sin(static_cast<double>(x)), tolerance) << x;
    ASSERT_NEAR(value.cos, std::cos(static_cast<double>(x)), tolerance) << x;
  };
  // All angles that positions below 2^20 can make.
  const std::uint32_t stride = step() * 7;
  for (std::uint32_t bits = 0; bits <= formats::bits_of(0x1p20F); bits += stride) {
    check(formats::float_of(bits), 1e-15);
  }
  for (std::uint32_t bits = formats::bits_of(0x1p20F); bits < formats::bits_of(0x1p30F);
       bits += stride) {
    check(formats::float_of(bits), 1e-13);
  }
}

}  // namespace
}  // namespace deepinfer::kernels
