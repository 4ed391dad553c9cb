// The module's functions against linear() on the published form of the same weights, whose bits
// kernels_test and the oracle hold.
#include "deepinfer/module.h"

#include <gtest/gtest.h>

#include <cmath>

#include "deepinfer/blockquant.h"
#include "kernels/registry.h"
#include "module_data.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::GuardedBytes;
using test::linear_bits;
using test::Output16;
using test::Output32;
using test::packed_weight;
using test::PackedWeight;
using test::Quantized;
using test::Random;
using test::rows_of;
using test::stored_bf16;

constexpr Element kElements[] = {Element::kE4m3fn, Element::kE2m1};
constexpr std::int64_t kM = 5;
constexpr std::int64_t kN = 70;
constexpr std::int64_t kK = 610;  // two turns of the lanes, a short block at the end
constexpr std::int64_t kCount = kM * kK;

/// Stacked weights of each element, activations in every form, a context of two threads.
class module_test : public testing::Test {
 protected:
  Random random_{17};
  PackedWeight fp8_ = packed_weight(random_, Element::kE4m3fn, kN, kK, 3);
  PackedWeight fp4_ = packed_weight(random_, Element::kE2m1, kN, kK, 3);
  PreparedWeight prepared_fp8_ = fp8_.prepare();
  PreparedWeight prepared_fp4_ = fp4_.prepare();
  std::vector<std::uint16_t> x_ = test::spread_bf16(random_, kCount, 12);
  Quantized at_224_ = test::quantize(test::widened(x_), kM, kK, 224);
  Quantized at_448_ = test::quantize(test::widened(x_), kM, kK, 448);
  Context context_{{.num_threads = 2}};

  const PackedWeight& packed(Element e) const { return e == Element::kE2m1 ? fp4_ : fp8_; }
  const PreparedWeight& prepared(Element e) const {
    return e == Element::kE2m1 ? prepared_fp4_ : prepared_fp8_;
  }

  std::vector<std::uint32_t> gemm_bits(const Quantized& a, Element e, std::int64_t group) const {
    Output32 d(kM, kN);
    gemm_f32(context_, a.view(), prepared(e), d.view, group);
    return d.bits;
  }
};

TEST_F(module_test, gemm_f32_multiplies_the_exact_values_of_codes) {
  for (std::int64_t g = 0; g < 3; ++g) {
    const auto values = at_448_.values();
    EXPECT_EQ(gemm_bits(at_448_, Element::kE4m3fn, g),
              linear_bits(context_, rows_of(values, kM, kK), fp8_.published(g)));
  }
}

TEST_F(module_test, gemm_on_fp4_quantizes_again) {
  const auto values = at_448_.values();
  EXPECT_EQ(
      gemm_bits(at_448_, Element::kE2m1, 1),
      linear_bits(context_, rows_of(values, kM, kK), fp4_.published(1), Activations::kQuantize224));
  EXPECT_NE(gemm_bits(at_448_, Element::kE2m1, 1),
            linear_bits(context_, rows_of(values, kM, kK), fp4_.published(1)));
}

TEST_F(module_test, quantizing_again_changes_no_value_of_224_and_some_of_448) {
  const auto changed = [](const Quantized& q) {
    const auto before = q.values();
    const auto after = test::quantize(test::widened(before), q.m, q.k, 224).values();
    std::int64_t count = 0;
    for (std::size_t i = 0; i < before.size(); ++i) count += before[i] != after[i] ? 1 : 0;
    return count;
  };
  EXPECT_EQ(changed(at_224_), 0);
  const std::int64_t count = changed(at_448_);
  EXPECT_GT(count, 0);
  RecordProperty("changed_at_448", static_cast<int>(count));
  std::printf("quantized at 448: %lld of %lld values change\n", static_cast<long long>(count),
              static_cast<long long>(kM * kK));
  // The library agrees: fp4 takes values of 224 as they are.
  const auto values = at_224_.values();
  EXPECT_EQ(gemm_bits(at_224_, Element::kE2m1, 0),
            linear_bits(context_, rows_of(values, kM, kK), fp4_.published(0)));
}

TEST_F(module_test, gemm_rounds_to_bf16_and_gemm_f32_does_not) {
  for (const Element e : kElements) {
    const auto sums = gemm_bits(at_224_, e, 2);
    Output16 narrow(kM, kN);
    gemm(context_, at_224_.view(), prepared(e), narrow.view, 2);
    EXPECT_EQ(narrow.bits, stored_bf16(sums));
    Output32 wide(kM, kN);
    gemm(context_, at_224_.view(), prepared(e), wide.view, 2);
    std::int64_t differ = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      EXPECT_EQ(wide.bits[i], static_cast<std::uint32_t>(narrow.bits[i]) << 16);
      differ += wide.bits[i] != sums[i] ? 1 : 0;
    }
    EXPECT_GT(differ, 0) << "the two entries would be one";
  }
}

TEST_F(module_test, fused_and_separate_quantization_give_the_same_bits) {
  std::vector<std::uint16_t> x = x_;
  x[3] = 0x7FC0;                                               // NaN
  x[static_cast<std::size_t>(kK) + 40] = 0xFF80;               // -infinity
  x[static_cast<std::size_t>(2 * kK)] = 0x7F7F;                // above 224 * 2^119
  std::fill_n(x.begin() + 3 * kK, 64, std::uint16_t{0x8000});  // two blocks of -0
  x[static_cast<std::size_t>(4 * kK)] = 0x0001;                // subnormal
  const Quantized q = test::quantize(test::widened(x), kM, kK, 224);
  for (const Element e : kElements) {
    Output16 separate(kM, kN);
    gemm(context_, q.view(), prepared(e), separate.view, 1);
    const auto fused = linear_qdq(context_, rows_of(x, kM, kK), prepared(e), 1);
    EXPECT_EQ(fused, separate.bits);
    for (std::int64_t r = 0; r < 3; ++r) EXPECT_EQ(fused[static_cast<std::size_t>(r * kN)], 0x7FC0);
    EXPECT_NE(fused.back() & 0x7FFF, 0x7FC0);
  }
}

TEST_F(module_test, linear_qdq_takes_bf16_and_f32_and_writes_both) {
  std::vector<float> x = test::widened(x_);
  for (float& v : x) v *= 1.0009765625F;  // not bf16
  for (const Element e : kElements) {
    const auto from_bf16 = linear_bits(context_, rows_of(x_, kM, kK), packed(e).published(2),
                                       Activations::kQuantize224);
    const auto from_f32 = linear_bits(context_, rows_of(x, kM, kK), packed(e).published(2),
                                      Activations::kQuantize224);
    EXPECT_NE(from_bf16, from_f32);
    EXPECT_EQ(linear_qdq(context_, rows_of(x_, kM, kK), prepared(e), 2), stored_bf16(from_bf16));
    EXPECT_EQ(linear_qdq(context_, rows_of(x, kM, kK), prepared(e), 2), stored_bf16(from_f32));
    Output32 y(kM, kN);
    linear_qdq(context_, rows_of(x, kM, kK), prepared(e), y.view, 2);
    EXPECT_EQ(y.bits, from_f32);
  }
}

TEST_F(module_test, nothing_outside_of_d_is_written) {
  constexpr std::int64_t kStride = kN + 11;
  const std::int32_t flags[] = {1, 0};
  for (const Element e : kElements) {
    const auto calls = [&](int call, const MutableMatrixView& d) {
      if (call == 0) gemm(context_, at_224_.view(), prepared(e), d, 1);
      if (call == 1) linear_qdq(context_, rows_of(x_, kM, kK), prepared(e), d, 1);
      if (call >= 2) {
        linear_qdq_gated(context_, rows_of(x_, kM, kK), prepared(e), 1, &flags[call - 2], d);
      }
    };
    for (int call = 0; call < 4; ++call) {
      Output16 dense(kM, kN);
      calls(call, dense.view);
      std::vector<std::uint16_t> wide(static_cast<std::size_t>((kM + 1) * kStride), 0xABCD);
      calls(call, {wide.data(), FloatType::kBf16, kM, kN, kStride});
      for (std::int64_t i = 0; i < (kM + 1) * kStride; ++i) {
        const std::int64_t r = i / kStride;
        const std::int64_t c = i % kStride;
        const bool inside = r < kM && c < kN;
        const auto expected =
            inside ? dense.bits[static_cast<std::size_t>(r * kN + c)] : std::uint16_t{0xABCD};
        ASSERT_EQ(wide[static_cast<std::size_t>(i)], expected) << call << " " << r << " " << c;
      }
    }
  }
}

TEST_F(module_test, raw_slices_have_the_bits_of_the_whole) {
  for (const test::FormatCase& format : test::kFormatCases) {
    if (format.scale != ScaleType::kE8m0) continue;
    Random random(21);
    const test::TestWeight whole = test::random_weight(random, format, 300, 320);
    const auto x = test::spread_bf16(random, kM * 320, 6);
    const auto bits = stored_bf16(
        linear_bits(context_, rows_of(x, kM, 320), whole.view, Activations::kQuantize224));
    for (const auto& [first, n] : {std::pair<std::int64_t, std::int64_t>{0, 300},
                                   {1, 5},
                                   {31, 2},
                                   {127, 130},
                                   {144, 144},
                                   {299, 1},
                                   {10, 0}}) {
      Output16 y(kM, n);
      linear_qdq_raw(context_, rows_of(x, kM, 320), slice(whole.view, first, n, 0, 320), y.view);
      for (std::int64_t i = 0; i < kM * n; ++i) {
        ASSERT_EQ(y.bits[static_cast<std::size_t>(i)],
                  bits[static_cast<std::size_t>(i / n * 300 + first + i % n)])
            << format.name << " rows from " << first;
      }
    }
    // A slice of columns is a weight of its own: the same codes, and scales repeated for every 32.
    for (const auto& [first, k] : {std::pair<std::int64_t, std::int64_t>{32, 96},
                                   {96, 64},
                                   {128, 192},
                                   {288, 32},
                                   {64, 2}}) {
      test::TestWeight copy = whole;
      copy.view = slice(whole.view, 0, 300, first, k);
      std::vector<std::uint16_t> part;
      for (std::int64_t r = 0; r < kM; ++r) {
        const auto* row = x.data() + r * 320 + first;
        part.insert(part.end(), row, row + k);
      }
      std::vector<std::uint8_t> scales;  // one per row and 32 columns
      for (std::int64_t r = 0; r < 300; ++r) {
        for (std::int64_t c = first; c < first + k; c += 32) {
          scales.push_back(whole.scales[static_cast<std::size_t>(
              r / format.block_n * whole.view.scale_columns + c / format.block_k)]);
        }
      }
      WeightView plain = copy.view;
      plain.block_n = 1;
      plain.block_k = 32;
      plain.row_offset = plain.column_offset = plain.scale_stride = 0;
      plain.scales = scales.data();
      plain.scale_rows = 300;
      plain.scale_columns = (k + 31) / 32;
      Output16 y(kM, 300);
      linear_qdq_raw(context_, rows_of(part, kM, k), copy.view, y.view);
      EXPECT_EQ(y.bits, stored_bf16(linear_bits(context_, rows_of(part, kM, k), plain,
                                                Activations::kQuantize224)))
          << format.name << " columns from " << first;
    }
    for (const std::int64_t column : {1, 16, 31, 48}) {
      EXPECT_NE(test::refusal([&] { slice(whole.view, 0, 8, column, 32); }).find("multiple of 32"),
                std::string::npos);
    }
  }
}

TEST_F(module_test, columns_in_two_halves_have_the_same_bits) {
  Random random(23);
  for (const std::int64_t n : {256, 512, 255, 128}) {
    const PackedWeight w = packed_weight(random, Element::kE2m1, n, 96);
    const auto x = test::spread_bf16(random, 3 * 96, 6);
    const Context whole({.num_threads = 1, .split2 = false});
    const auto bits = linear_qdq(whole, rows_of(x, 3, 96), w.prepare());
    for (const int threads : {1, 2, 3, 5}) {
      const Context halves({.num_threads = threads, .split2 = true});
      EXPECT_EQ(splits_in_two(halves, n), n % 256 == 0);
      EXPECT_EQ(fits_module_gated(halves, w.prepare()), n % 256 == 0);
      EXPECT_FALSE(splits_in_two(whole, n));
      EXPECT_FALSE(fits_module_gated(whole, w.prepare()));
      EXPECT_EQ(linear_qdq(halves, rows_of(x, 3, 96), w.prepare()), bits);
    }
  }
  EXPECT_FALSE(
      fits_module_gated(context_, packed_weight(random, Element::kE4m3fn, 256, 64).prepare()));
}

TEST_F(module_test, gates_run_for_1_alone_and_read_their_flag_when_they_run) {
  for (const Element e : kElements) {
    PackedWeight w = packed(e);
    const GuardedBytes codes(w.codes);
    w.view.codes = codes.data();
    const PreparedWeight guarded = w.prepare();
    const auto plain = linear_qdq(context_, rows_of(x_, kM, kK), guarded, 2);
    std::int32_t flag = 1;
    const auto gated = [&] {
      Output16 y(kM, kN);
      linear_qdq_gated(context_, rows_of(x_, kM, kK), guarded, 2, &flag, y.view);
      return y.bits;
    };
    EXPECT_EQ(gated(), plain);
    codes.lock();  // a read of a weight would end the program
    const std::vector<std::uint16_t> zeros(plain.size(), 0);
    for (const std::int32_t closed : {0, 2, -1, 256, 1 << 24}) {
      flag = closed;
      EXPECT_EQ(gated(), zeros) << closed;
    }
    flag = 1;
    const auto read = [&] {
      const Context own({.num_threads = 1});  // threads do not survive a fork
      Output16 y(kM, kN);
      linear_qdq_gated(own, rows_of(x_, kM, kK), guarded, 2, &flag, y.view);
    };
    EXPECT_DEATH(read(), "");
    codes.unlock();
    EXPECT_EQ(gated(), plain);
  }
}

TEST_F(module_test, questions_are_answered_without_side_effects) {
  const Context off({.num_threads = 1, .gemm = false});
  const QuantizedView a = at_224_.view();
  for (const Element e : kElements) {
    EXPECT_TRUE(supported(context_, a, &prepared(e), kK, kN));  // the module's gate would refuse
    EXPECT_FALSE(supported(off, a, &prepared(e), kK, kN));
    EXPECT_FALSE(supported(context_, a, &prepared(e), kK, kN + 1));
    EXPECT_FALSE(supported(context_, a, &prepared(e), kK - 1, kN));
    EXPECT_TRUE(has_kernel(context_, &prepared(e)));
    EXPECT_FALSE(has_kernel(off, &prepared(e)));
  }
  QuantizedView narrow = a;
  --narrow.scale_columns;
  EXPECT_FALSE(supported(context_, narrow, &prepared_fp8_, kK, kN));
  EXPECT_FALSE(supported(context_, a, nullptr, kK, kN));
  EXPECT_FALSE(has_kernel(context_, nullptr));
  EXPECT_FALSE(fits_module_gate(kK, kN));
  EXPECT_TRUE(fits_module_gate(128, 32));
  EXPECT_FALSE(fits_module_gate(96, 32));
  EXPECT_FALSE(fits_module_gate(128, 48));
}

TEST(module_decode_test, every_code_and_every_scale_byte_is_exact) {
  std::vector<std::uint8_t> bytes(256);
  for (std::size_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  std::vector<float> out(512);
  decode_data(Element::kE4m3fn, bytes.data(), 256, out.data());
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    const float got = out[static_cast<std::size_t>(code)];
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(got));
    } else {
      EXPECT_EQ(static_cast<double>(got), code < 128 ? magnitude : -magnitude);
    }
    EXPECT_EQ(std::signbit(got), code >= 128);
  }
  decode_data(Element::kE2m1, bytes.data(), 511, out.data());
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (int i = 0; i < 511; ++i) {
    const int code = i % 2 == 0 ? i / 2 % 16 : i / 2 / 16;
    EXPECT_EQ(out[static_cast<std::size_t>(i)], code < 8 ? kValues[code] : -kValues[code - 8]);
    EXPECT_EQ(std::signbit(out[static_cast<std::size_t>(i)]), code >= 8);
  }
  std::vector<float> scales(256 * 33);
  for (const DType dtype : {DType::kU8, DType::kF8E8m0, DType::kI16}) {
    const std::int64_t columns = dtype == DType::kI16 ? 1 : 2;
    sf_to_scales({bytes.data(), dtype, 128, columns}, 33, scales.data());
    for (int r = 0; r < 128; ++r) {
      for (int i = 0; i < 33; ++i) {
        const int byte = 2 * r + i / 32;
        const float got = scales[static_cast<std::size_t>(r * 33 + i)];
        if (byte == 255) {
          EXPECT_TRUE(std::isnan(got));
        } else {
          ASSERT_EQ(static_cast<double>(got), std::ldexp(1.0, byte - 127));
        }
      }
    }
  }
}

}  // namespace
}  // namespace deepinfer
