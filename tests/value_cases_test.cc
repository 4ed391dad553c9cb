// Public fault reports about what codes and scales mean, and about special values, by number.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>

#include "case_data.h"
#include "formats/e2m1.h"
#include "formats/scale.h"

namespace deepinfer {
namespace {

using test::Filled;
using test::filled;
using test::kOne;
using test::multiply;
using test::one_hot;
using test::ones;
using test::repeated;
using test::set_scale_byte;
using test::set_scales;

TEST(value_cases_test, case_001_nan_codes_are_nan) {
  Filled w = filled(2, 32, 1, 32);
  set_scale_byte(w, 127);
  for (const std::uint8_t nan : {0x7F, 0xFF}) {
    w.codes[3] = nan;
    const auto y = multiply(w.view, ones(32));
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], 32.0F);
  }
  int nans = 0;
  float largest = 0.0F;
  for (int code = 0; code < 256; ++code) {
    const float value = formats::decode_e4m3fn(static_cast<std::uint8_t>(code));
    EXPECT_FALSE(std::isinf(value));
    nans += std::isnan(value) ? 1 : 0;
    if (value > largest) largest = value;
  }
  EXPECT_EQ(nans, 2);
  EXPECT_EQ(largest, 448.0F);
}

TEST(value_cases_test, case_003_u8_scales_are_exponents) {
  Filled w = filled(32, 32, 32, 32);
  set_scale_byte(w, 120);
  EXPECT_EQ(multiply(w.view, ones(32)), repeated(0.25F, 32));
}

TEST(value_cases_test, case_005_small_scales_are_not_flushed) {
  Filled one = filled(1, 32, 1, 32, 0x22, Element::kE2m1);  // 1.0 everywhere
  set_scale_byte(one, 100);
  EXPECT_EQ(multiply(one.view, one_hot(32, 0, 0x1p27F)), repeated(1.0F, 1));
  // Row b - 1 of w has the scale byte b, and that of x has 2^(127 - b).
  constexpr std::int64_t kBytes = 227;
  Filled w = filled(kBytes, 32, 1, 32, 0x22, Element::kE2m1);
  std::vector<std::uint8_t> bytes;
  std::vector<float> x;
  for (int b = 1; b <= kBytes; ++b) {
    bytes.push_back(static_cast<std::uint8_t>(b));
    const auto row = one_hot(32, 0, std::ldexp(1.0F, 127 - b));
    x.insert(x.end(), row.begin(), row.end());
  }
  set_scales(w, ScaleType::kE8m0, bytes);
  const Weight prepared = Weight::prepare(w.view, "w");
  // Past the last byte the floor of 1e-4 rounds x to 0; x as it is counts down to 2^-100.
  for (const auto& [activations, last] : {std::pair{Activations::kQuantize224, 157},
                                          {Activations::kQuantize448, 158},
                                          {Activations::kAsIs, 227}}) {
    for (const auto& context : test::all_contexts()) {
      std::vector<float> y(static_cast<std::size_t>(kBytes * kBytes), NAN);
      linear(*context, test::rows_of(x, kBytes, 32), prepared,
             {y.data(), FloatType::kF32, kBytes, kBytes, 0}, activations);
      for (std::int64_t i = 0; i < kBytes; ++i) {
        EXPECT_EQ(y[static_cast<std::size_t>(i * kBytes + i)], i < last ? 1.0F : 0.0F) << i + 1;
      }
    }
  }
}

TEST(value_cases_test, case_006_scale_byte_0_is_a_subnormal_and_255_is_nan) {
  Filled w = filled(1, 32, 32, 32, 0x78);  // 256
  set_scale_byte(w, 0);
  const auto x = one_hot(32, 0, 0x1p100F);
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr();
  for (const unsigned state : {before, 0x9FC0U, 0x1F80U | 0x6000U}) {
    _mm_setcsr(state);  // FTZ and DAZ, or rounding toward zero, in the calling thread
    const float y = multiply(w.view, x)[0];
    _mm_setcsr(before);
    EXPECT_TRUE(test::same_bits(y, 0x1p-19F)) << y;
  }
#endif
  EXPECT_EQ(multiply(w.view, x)[0], 0x1p-19F);
  set_scale_byte(w, 255);
  EXPECT_TRUE(std::isnan(multiply(w.view, x)[0]));
}

TEST(value_cases_test, case_007_every_e2m1_code_reaches_the_result) {
  constexpr float kValues[] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  Filled w = filled(16, 32, 1, 32, 0, Element::kE2m1);
  for (std::size_t code = 0; code < 16; ++code) {
    w.codes[code * 16] = static_cast<std::uint8_t>(code | (15 - code) << 4);
  }
  set_scale_byte(w, 127);
  for (const int at : {0, 1}) {  // the low nibble is even k
    const auto y = multiply(w.view, one_hot(32, at, 1.0F));
    for (std::size_t row = 0; row < 16; ++row) {
      const std::size_t code = at == 0 ? row : 15 - row;
      EXPECT_EQ(y[row], code < 8 ? kValues[code] : -kValues[code - 8]);
    }
  }
}

TEST(value_cases_test, case_012_scales_are_not_rounded_to_powers_of_two) {
  Filled w = filled(128, 128, 128, 128);
  set_scales(w, ScaleType::kF32, std::vector<float>{0.75F});
  EXPECT_EQ(multiply(w.view, ones(128)), repeated(96.0F, 128));
}

TEST(value_cases_test, case_013_the_mantissa_of_a_scale_counts) {
  Filled w = filled(1, 32, 1, 32);
  set_scales(w, ScaleType::kF32, std::vector<float>{1.5F});
  EXPECT_EQ(multiply(w.view, ones(32)), repeated(48.0F, 1));
}

TEST(value_cases_test, case_017_the_scale_is_rounded_before_x_is_divided) {
  Filled w = filled(1, 32, 1, 32, 0);
  w.codes[5] = kOne;
  set_scale_byte(w, 127);
  const auto x = one_hot(32, 5, 300.0F);
  EXPECT_EQ(formats::choose_scale_byte(300.0F, formats::kLimit448), 127);
  EXPECT_EQ(formats::encode_e4m3fn(300.0F), 0x79);
  EXPECT_EQ(multiply(w.view, x, Activations::kQuantize448)[0], 288.0F);
  // Limit 224: scale 2, and 150 is nearer to 144 than to 160.
  EXPECT_EQ(formats::choose_scale_byte(300.0F, formats::kLimit224), 128);
  EXPECT_EQ(multiply(w.view, x)[0], 288.0F);
}

TEST(value_cases_test, case_018_activation_scales_round_up_and_never_clip) {
  Filled w = filled(2, 32, 1, 32, 0);
  w.codes[0] = kOne;
  w.codes[32 + 1] = kOne;
  set_scale_byte(w, 127);
  std::vector<float> x = one_hot(32, 0, 957.0F);
  x[1] = -959.5632F;
  x[2] = 960.0F;
  EXPECT_EQ(formats::choose_scale_byte(960.0F, formats::kLimit448), 129);
  EXPECT_EQ(formats::choose_scale_byte(960.0F, formats::kLimit224), 130);
  for (const Activations limit : {Activations::kQuantize224, Activations::kQuantize448}) {
    EXPECT_EQ(multiply(w.view, x, limit), (std::vector<float>{960.0F, -960.0F}));
  }
}

TEST(value_cases_test, case_019_scales_of_every_type_mean_their_value) {
  Filled w = filled(1, 32, 1, 32, test::kTwo);
  set_scales(w, ScaleType::kBf16, std::vector<std::uint16_t>{0x3B40});
  EXPECT_EQ(multiply(w.view, ones(32))[0], 0.1875F);
  set_scales(w, ScaleType::kF32, std::vector<float>{0.0029296875F});
  EXPECT_EQ(multiply(w.view, ones(32))[0], 0.1875F);
  set_scales(w, ScaleType::kF16, std::vector<std::uint16_t>{0x1A00});
  EXPECT_EQ(multiply(w.view, ones(32))[0], 0.1875F);
  // A power of two has a spelling in each.
  std::vector<float> x = ones(32);
  for (std::size_t i = 0; i < 32; ++i) x[i] = 0.1F * static_cast<float>(i) - 1.0F;
  set_scale_byte(w, 118);
  const auto y = multiply(w.view, x);
  set_scales(w, ScaleType::kF32, std::vector<float>{0x1p-9F});
  EXPECT_EQ(multiply(w.view, x), y);
  set_scales(w, ScaleType::kBf16, std::vector<std::uint16_t>{0x3B00});
  EXPECT_EQ(multiply(w.view, x), y);
  set_scales(w, ScaleType::kF16, std::vector<std::uint16_t>{0x1800});
  EXPECT_EQ(multiply(w.view, x), y);
}

TEST(value_cases_test, case_050_blocks_of_zeros_are_plus_zero) {
  EXPECT_EQ(formats::choose_scale_byte(0.0F, formats::kLimit448), 105);
  EXPECT_EQ(formats::choose_scale_byte(0.0F, formats::kLimit224), 106);
  Filled w = filled(3, 64, 32, 32, 0xB8);  // -1
  set_scale_byte(w, 127);
  for (const float zero : {0.0F, -0.0F}) {
    for (const Activations limit : {Activations::kQuantize224, Activations::kQuantize448}) {
      for (const float y : multiply(w.view, repeated(zero, 64), limit)) {
        EXPECT_EQ(formats::bits_of(y), 0U);
      }
    }
  }
}

TEST(value_cases_test, case_052_codes_saturate_and_infinite_rows_are_nan) {
  for (const float v : {448.0F, 464.0F, 465.0F, 1000.0F}) {
    EXPECT_EQ(formats::encode_e4m3fn(v), 0x7E) << v;
  }
  EXPECT_EQ(formats::encode_e4m3fn(-1000.0F), 0xFE);
  Filled w = filled(40, 96, 32, 32);
  set_scale_byte(w, 127);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const float y : multiply(w.view, one_hot(96, 70, bad))) EXPECT_TRUE(std::isnan(y));
  }
  // Only that row: its neighbours are as they were.
  std::vector<float> x = ones(3 * 96);
  x[96 + 95] = INFINITY;
  const Weight prepared = Weight::prepare(w.view, "w");
  std::vector<float> y(3 * 40);
  linear(*test::all_contexts()[0], test::rows_of(x, 3, 96), prepared,
         {y.data(), FloatType::kF32, 3, 40, 0});
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_TRUE(i / 40 == 1 ? std::isnan(y[i]) : y[i] == 96.0F) << i;
  }
}

TEST(value_cases_test, case_053_a_nan_scale_reaches_only_what_uses_its_block) {
  Filled w = filled(4010, 608, 1, 32);
  set_scale_byte(w, 127);
  w.scales[4001 * 19 + 18] = 0xFF;
  const Weight prepared = Weight::prepare(w.view, "w");
  for (const auto& context : test::all_contexts()) {
    std::vector<float> y(2 * 4010);
    const auto x = ones(2 * 608);
    linear(*context, test::rows_of(x, 2, 608), prepared, {y.data(), FloatType::kF32, 2, 4010, 0});
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_TRUE(i % 4010 == 4001 ? std::isnan(y[i]) : y[i] == 608.0F) << i;
    }
  }
}

TEST(value_cases_test, case_055_dead_rows_of_scales_are_not_looked_at) {
  Filled w = filled(3, 32, 1, 32);  // 8 rows of scales in memory, of which 3 live
  set_scales(w, ScaleType::kF32,
             std::vector<float>{1.0F, 0.3F, 2.0F, NAN, -1.0F, INFINITY, 0.3F, NAN});
  EXPECT_EQ(multiply(w.view, ones(32)), (std::vector<float>{32.0F, 32 * 0.3F, 64.0F}));
}

}  // namespace
}  // namespace deepinfer
