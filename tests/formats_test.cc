// Every code of every number format, and the roundings, against definitions in exact arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "code_values.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "formats/f16.h"
#include "formats/scale.h"
#include "random_data.h"

namespace deepinfer::formats {
namespace {

using test::e2m1_value;
using test::e4m3fn_value;

/// Nearest magnitude in a table of ascending values, ties to the even index.
template <class Value>
int nearest(double magnitude, int largest, Value value) {
  for (int i = 0; i < largest; ++i) {
    const double middle = (value(i) + value(i + 1)) / 2;
    if (magnitude < middle || (magnitude == middle && i % 2 == 0)) return i;
  }
  return largest;
}

TEST(formats_test, e4m3fn_decodes_every_code) {
  int nans = 0;
  for (int code = 0; code < 256; ++code) {
    const float value = decode_e4m3fn(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      ++nans;
      continue;
    }
    EXPECT_EQ(value, e4m3fn_value(code)) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
    EXPECT_EQ(encode_e4m3fn(value), code);
  }
  EXPECT_EQ(nans, 2);
}

TEST(formats_test, e4m3fn_encodes_nearest_even_and_saturates) {
  const auto value = [](int i) { return e4m3fn_value(i); };
  const auto check = [&](float v) {
    const int expected = nearest(std::fabs(static_cast<double>(v)), 0x7E, value);
    ASSERT_EQ(encode_e4m3fn(v), expected | (std::signbit(v) ? 0x80 : 0)) << v;
  };
  for (int code = 0; code < 0x7E; ++code) {  // every tie and its two neighbours
    const auto tie = static_cast<float>((value(code) + value(code + 1)) / 2);
    for (const float v : {tie, std::nextafterf(tie, 0.0F), std::nextafterf(tie, 1e9F)}) {
      check(v);
      check(-v);
    }
  }
  test::Random random(1);
  for (int i = 0; i < 200000; ++i) check(decode_bf16(random.bf16(12)));
  for (const float v :
       {448.0F, 464.0F, 465.0F, 1000.0F, 3e38F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(encode_e4m3fn(v), 0x7E);
    EXPECT_EQ(encode_e4m3fn(-v), 0xFE);
  }
  EXPECT_EQ(encode_e4m3fn(-0.0F), 0x80);
  EXPECT_EQ(encode_e4m3fn(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(encode_e4m3fn(-std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

TEST(formats_test, case_007_e2m1_table_and_ties) {
  for (int code = 0; code < 16; ++code) {
    const float value = decode_e2m1(static_cast<std::uint8_t>(code));
    EXPECT_EQ(value, e2m1_value(code));
    EXPECT_EQ(std::signbit(value), (code & 8) != 0);
    EXPECT_EQ(encode_e2m1(value), code);
  }
  const auto value = [](int i) { return e2m1_value(i); };
  const auto check = [&](float v) {
    const int expected = nearest(std::fabs(static_cast<double>(v)), 7, value);
    ASSERT_EQ(encode_e2m1(v), expected | (std::signbit(v) ? 8 : 0)) << v;
  };
  for (int code = 0; code < 7; ++code) {
    const auto tie = static_cast<float>((value(code) + value(code + 1)) / 2);
    for (const float v : {tie, std::nextafterf(tie, 0.0F), std::nextafterf(tie, 1e9F)}) {
      check(v);
      check(-v);
    }
  }
  test::Random random(2);
  for (int i = 0; i < 100000; ++i) check(decode_bf16(random.bf16(12)));
  EXPECT_EQ(encode_e2m1(7.0F), 7);
  EXPECT_EQ(encode_e2m1(-std::numeric_limits<float>::infinity()), 15);
  EXPECT_EQ(encode_e2m1(0.25F), 0);
  EXPECT_EQ(encode_e2m1(0.75F), 2);
  EXPECT_EQ(encode_e2m1(2.5F), 4);
  EXPECT_EQ(encode_e2m1(5.0F), 6);
}

TEST(formats_test, e8m0_decodes_every_byte) {
  for (int b = 0; b < 255; ++b) {
    EXPECT_EQ(decode_e8m0(static_cast<std::uint8_t>(b)), std::ldexp(1.0, b - 127)) << b;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_GT(decode_e8m0(0), 0.0F);
}

TEST(formats_test, bf16_round_trips_every_code) {
  for (int code = 0; code < 65536; ++code) {
    const auto c = static_cast<std::uint16_t>(code);
    const float value = decode_bf16(c);
    EXPECT_EQ(bits_of(value), static_cast<std::uint32_t>(code) << 16);
    const bool nan = (code & 0x7FFF) > 0x7F80;
    EXPECT_EQ(encode_bf16(value), nan ? kBf16Nan : c);
    EXPECT_EQ(store_bf16(value), nan ? kBf16Nan : (code & 0x7FFF) == 0 ? 0 : c);
  }
}

TEST(formats_test, bf16_rounds_to_nearest_even) {
  for (std::uint32_t code = 0; code < 0x7F80; ++code) {  // ties between a code and the next
    const std::uint32_t tie = (code << 16) | 0x8000U;
    const std::uint32_t even = code + (code & 1U);
    EXPECT_EQ(encode_bf16(float_of(tie)), even);
    EXPECT_EQ(encode_bf16(float_of(tie - 1)), code);
    EXPECT_EQ(encode_bf16(float_of(tie + 1)), code + 1);
    EXPECT_EQ(encode_bf16(float_of(tie | kSignBit)), even | 0x8000U);
  }
  EXPECT_EQ(store_bf16(float_of(0x80000001U)), 0);  // a negative result that rounds to zero
  EXPECT_EQ(bits_of(store_f32(-0.0F)), 0U);
  EXPECT_EQ(bits_of(store_f32(float_of(0xFF812345U))), kNanBits);
}

TEST(formats_test, f16_decodes_every_code) {
  for (int code = 0; code < 65536; ++code) {
    const int e = (code >> 10) & 31;
    const int m = code & 1023;
    const float value = decode_f16(static_cast<std::uint16_t>(code));
    if (e == 31 && m != 0) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude = e == 31  ? std::numeric_limits<double>::infinity()
                             : e == 0 ? std::ldexp(m, -24)
                                      : std::ldexp(1024 + m, e - 25);
    EXPECT_EQ(value, (code & 0x8000) != 0 ? -magnitude : magnitude);
  }
}

/// The rule of docs/determinism.md by definition: the smallest power of two with a <= limit * s.
int scale_byte_by_definition(float amax, double limit, double floor) {
  const double a = std::max<double>(amax, floor);
  int byte = 1;
  while (a > limit * std::ldexp(1.0, byte - 127)) ++byte;
  return byte;
}

TEST(formats_test, scale_is_the_smallest_power_of_two_that_fits) {
  const auto check = [](float amax) {
    ASSERT_EQ(choose_scale_byte(amax, kLimit224), scale_byte_by_definition(amax, 224, 1e-4F))
        << amax;
    ASSERT_EQ(choose_scale_byte(amax, kLimit448), scale_byte_by_definition(amax, 448, 1e-4F))
        << amax;
    ASSERT_EQ(choose_scale_byte(amax, kLimit6),
              scale_byte_by_definition(amax, 6, std::ldexp(6, -126)))
        << amax;
  };
  for (int e = -126; e <= 127; ++e) {  // around every threshold
    for (const double m : {1.0, 1.5, 1.75}) {
      const auto v = static_cast<float>(std::ldexp(m, e));
      check(v);
      check(std::nextafterf(v, 0.0F));
      if (std::isfinite(std::nextafterf(v, std::numeric_limits<float>::infinity())))
        check(std::nextafterf(v, std::numeric_limits<float>::infinity()));
    }
  }
  check(0.0F);
}

TEST(formats_test, case_015_scale_next_to_a_power_of_two) {
  EXPECT_EQ(choose_scale_byte(14336.001953125F, kLimit448), 133);
  EXPECT_EQ(encode_e4m3fn(14336.001953125F / 64), 0x76);
  EXPECT_EQ(choose_scale_byte(14336.0F, kLimit448), 132);
  EXPECT_EQ(encode_e4m3fn(14336.0F / 32), 0x7E);
}

}  // namespace
}  // namespace deepinfer::formats
