// linear() as callers use it: types, strides, odd addresses, empty matrices, limits, refusals.
// Values are compared with the plain f32 call, whose bits kernels_test and arithmetic_test hold.
#include "deepinfer/linear.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "deepinfer/error.h"
#include "formats/bf16.h"
#include "formats/e4m3fn.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::Random;
using test::TestWeight;

constexpr std::int64_t kM = 5;
constexpr std::int64_t kN = 37;
constexpr std::int64_t kK = 98;
constexpr test::FormatCase kFp8 = {"fp8-32x32", Element::kE4m3fn, ScaleType::kE8m0, 32, 32};
constexpr test::FormatCase kFp8F32 = {"fp8-f32", Element::kE4m3fn, ScaleType::kF32, 32, 32};

std::vector<std::uint16_t> bf16_matrix(std::int64_t count) {
  Random random(4);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::uint16_t& v : x) v = random.bf16(6);
  return x;
}

std::vector<float> widened(const std::vector<std::uint16_t>& x) {
  std::vector<float> out;
  for (const std::uint16_t v : x) out.push_back(formats::decode_bf16(v));
  return out;
}

class linear_test : public testing::Test {
 protected:
  Random random_{9};
  TestWeight test_weight_ = test::random_weight(random_, kFp8, kN, kK);
  Weight w_ = test_weight_.prepare();
  Context context_;
  std::vector<std::uint16_t> x_ = bf16_matrix(kM * kK);
  std::vector<float> y_ = std::vector<float>(static_cast<std::size_t>(kM * kN));

  MatrixView x() const { return {x_.data(), FloatType::kBf16, kM, kK, 0}; }
  MutableMatrixView y() { return {y_.data(), FloatType::kF32, kM, kN, 0}; }
};

TEST_F(linear_test, bf16_and_f32_x_of_equal_values_give_equal_bits) {
  linear(context_, x(), w_, y());
  const std::vector<float> wide = widened(x_);
  std::vector<float> other(y_.size());
  linear(context_, {wide.data(), FloatType::kF32, kM, kK, 0}, w_,
         {other.data(), FloatType::kF32, kM, kN, 0});
  EXPECT_EQ(std::memcmp(y_.data(), other.data(), y_.size() * 4), 0);
}

TEST_F(linear_test, bf16_y_is_the_stored_f32_y) {
  linear(context_, x(), w_, y());
  std::vector<std::uint16_t> narrow(y_.size(), 0xFFFF);
  linear(context_, x(), w_, {narrow.data(), FloatType::kBf16, kM, kN, 0});
  for (std::size_t i = 0; i < y_.size(); ++i) EXPECT_EQ(narrow[i], formats::store_bf16(y_[i]));
}

TEST_F(linear_test, strides_are_kept_and_gaps_are_not_written) {
  linear(context_, x(), w_, y());
  constexpr std::int64_t kXStride = kK + 13;
  constexpr std::int64_t kYStride = kN + 6;
  std::vector<std::uint16_t> wide_x(static_cast<std::size_t>(kM * kXStride),
                                    0x7FC0);  // NaN between
  std::vector<float> wide_y(static_cast<std::size_t>(kM * kYStride), -7.0F);
  for (std::int64_t r = 0; r < kM; ++r) {
    std::memcpy(&wide_x[static_cast<std::size_t>(r * kXStride)],
                &x_[static_cast<std::size_t>(r * kK)], kK * 2);
  }
  linear(context_, {wide_x.data(), FloatType::kBf16, kM, kK, kXStride}, w_,
         {wide_y.data(), FloatType::kF32, kM, kN, kYStride});
  for (std::int64_t r = 0; r < kM; ++r) {
    for (std::int64_t c = 0; c < kYStride; ++c) {
      const float expected = c < kN ? y_[static_cast<std::size_t>(r * kN + c)] : -7.0F;
      EXPECT_EQ(wide_y[static_cast<std::size_t>(r * kYStride + c)], expected);
    }
  }
}

TEST_F(linear_test, case_074_codes_and_scales_may_lie_at_odd_addresses) {
  for (const test::FormatCase& format : test::kFormatCases) {
    Random random(12);
    const TestWeight t = test::random_weight(random, format, kN, kK);
    linear(context_, x(), t.prepare(), y());
    std::vector<std::uint8_t> codes(t.codes.size() + 1);
    std::vector<std::uint8_t> scales(t.scales.size() + 1);
    std::memcpy(codes.data() + 1, t.codes.data(), t.codes.size());
    if (!t.scales.empty()) std::memcpy(scales.data() + 1, t.scales.data(), t.scales.size());
    WeightView odd = t.view;
    odd.codes = codes.data() + 1;
    if (odd.scales != nullptr) odd.scales = scales.data() + 1;
    std::vector<float> other(y_.size());
    for (const Isa isa : {Isa::kRef, context_.isa()}) {
      const Context context({.num_threads = 1, .isa = isa});
      linear(context, x(), Weight::prepare(odd, format.name),
             {other.data(), FloatType::kF32, kM, kN, 0});
      EXPECT_EQ(std::memcmp(y_.data(), other.data(), y_.size() * 4), 0) << format.name;
    }
  }
}

TEST_F(linear_test, limit_448_and_224_differ_where_they_should) {
  // 300 in a block: scale 1 and code 288 at limit 448; scale 2 and 304 / 2 at limit 224. One code
  // of 1.0 under it.
  std::vector<std::uint8_t> codes(32, 0);
  codes[0] = 0x38;
  const std::uint8_t scale = 127;
  WeightView view;
  view.element = Element::kE4m3fn;
  view.codes = codes.data();
  view.n = 1;
  view.k = 32;
  view.scale_type = ScaleType::kE8m0;
  view.scales = &scale;
  view.scale_rows = 1;
  view.scale_columns = 1;
  const Weight w = Weight::prepare(view, "w");
  std::vector<float> x(32, 0.0F);
  x[0] = 300.0F;
  float y = 0;
  const MatrixView in = {x.data(), FloatType::kF32, 1, 32, 0};
  const MutableMatrixView out = {&y, FloatType::kF32, 1, 1, 0};
  linear(context_, in, w, out, Activations::kQuantize448);
  EXPECT_EQ(y, 288.0F);  // public case 17
  linear(context_, in, w, out, Activations::kQuantize224);
  EXPECT_EQ(y, 2.0F * formats::decode_e4m3fn(formats::encode_e4m3fn(150.0F)));
  linear(context_, in, w, out, Activations::kAsIs);
  EXPECT_EQ(y, 300.0F);
}

TEST_F(linear_test, empty_matrices_are_success_and_touch_nothing) {
  linear(context_, {nullptr, FloatType::kF32, 0, kK, 0}, w_,
         {nullptr, FloatType::kF32, 0, kN, 0});  // public case 57
  WeightView view = test_weight_.view;
  view.n = 0;
  view.scale_rows = 0;
  const Weight none = Weight::prepare(view, "none");
  linear(context_, {nullptr, FloatType::kF32, kM, kK, 0}, none,
         {nullptr, FloatType::kF32, kM, 0, 0});
}

TEST_F(linear_test, no_columns_of_k_give_the_bias_or_plus_zero) {
  WeightView view = test_weight_.view;
  view.k = 0;
  view.row_bytes = 0;
  view.scale_columns = 0;
  const Weight w = Weight::prepare(view, "w");
  std::vector<float> bias(kN, 1.5F);
  linear(context_, {nullptr, FloatType::kF32, kM, 0, 0}, w, y(), Activations::kQuantize224,
         bias.data());
  for (const float v : y_) EXPECT_EQ(v, 1.5F);
  linear(context_, {nullptr, FloatType::kF32, kM, 0, 0}, w, y());
  for (const float v : y_) EXPECT_EQ(formats::bits_of(v), 0U);
}

TEST_F(linear_test, misuse_is_refused_by_the_name_of_the_argument) {
  const auto refused = [&](const MatrixView& in, const MutableMatrixView& out, const char* word,
                           const float* bias = nullptr) {
    try {
      linear(context_, in, w_, out, Activations::kQuantize224, bias);
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 4;
  const auto* odd = reinterpret_cast<const char*>(x_.data()) + 1;
  refused({nullptr, FloatType::kBf16, kM, kK, 0}, y(), "x is null");
  refused(x(), {nullptr, FloatType::kF32, kM, kN, 0}, "y is null");
  refused({x_.data(), FloatType::kBf16, kM, kK + 1, 0}, y(), "x is [5, 99], expected [5, 98]");
  refused(x(), {y_.data(), FloatType::kF32, kM + 1, kN, 0}, "y is [6, 37]");
  refused({x_.data(), FloatType::kBf16, kM, kK, kK - 1}, y(), "x has rows 97 elements apart");
  refused({x_.data(), FloatType::kBf16, kM, kK, -kK}, y(), "x has rows");
  refused({odd, FloatType::kBf16, kM, kK, 0}, y(), "x is not aligned");
  refused({x_.data(), FloatType::kBf16, -1, kK, 0}, y(), "x has -1 rows");
  refused({x_.data(), FloatType::kBf16, kM, kK, kHuge}, y(), "x covers more bytes");
  refused({y_.data(), FloatType::kBf16, kM, kK, 0}, y(), "overlap");
  refused(x(), y(), "bias and y overlap", y_.data());
}

TEST(weight_test, views_that_cannot_be_are_refused_by_name) {
  Random random(1);
  const TestWeight fp8 = test::random_weight(random, kFp8, 64, 64);
  const auto refused = [&](auto change, const char* word) {
    WeightView view = fp8.view;
    change(view);
    try {
      Weight::prepare(view, "layer.w");
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("layer.w"), std::string::npos) << error.what();
    }
  };
  refused([](WeightView& v) { v.scale_rows = 1; }, "expected [2, 2], found [1, 2]");
  refused([](WeightView& v) { v.scale_type = ScaleType::kNone; }, "need scales");
  refused([](WeightView& v) { v.element = Element::kBf16; }, "have no scales");
  refused([](WeightView& v) { v.codes = nullptr; }, "codes are null");
  refused([](WeightView& v) { v.scales = nullptr; }, "scales are null");
  refused([](WeightView& v) { v.block_k = 48; }, "blocks of 32 x 48");
  refused([](WeightView& v) { v.block_n = 0; }, "blocks of 0 x 32");
  refused([](WeightView& v) { v.n = -1; }, "negative");
  refused([](WeightView& v) { v.row_bytes = 63; }, "63 bytes apart");
  refused(
      [](WeightView& v) {
        v.element = Element::kE2m1;
        v.k = 63;
      },
      "k must be even");
  WeightView whole = fp8.view;  // a block as large as can be said is the whole weight
  whole.block_n = whole.block_k = std::numeric_limits<std::int64_t>::max();
  whole.scale_rows = whole.scale_columns = 1;
  EXPECT_EQ(Weight::prepare(whole, "w").n(), 64);
}

TEST(weight_test, bad_f32_scales_are_refused_with_their_place) {
  Random random(1);
  for (const float bad :
       {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    TestWeight t = test::random_weight(random, kFp8F32, 64, 96);
    std::memcpy(t.scales.data() + 4 * 4, &bad, 4);  // [1, 1] of [2, 3]
    try {
      t.prepare();
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("scale [1, 1]"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace deepinfer
