// Misuse of the module's functions: refused by the name of the argument, before anything is
// written.
#include <gtest/gtest.h>

#include <limits>

#include "deepinfer/module.h"
#include "module_data.h"

namespace deepinfer {
namespace {

using test::packed_weight;
using test::PackedWeight;
using test::Quantized;
using test::Random;
using test::rows_of;

constexpr std::int64_t kM = 5;
constexpr std::int64_t kN = 64;
constexpr std::int64_t kK = 96;
constexpr std::int64_t kCount = kM * kK;
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / 4;

class misuse_test : public testing::Test {
 protected:
  Random random_{61};
  PackedWeight packed_ = packed_weight(random_, Element::kE2m1, kN, kK, 3);
  PreparedWeight stacked_ = packed_.prepare();
  PackedWeight packed_fp8_ = packed_weight(random_, Element::kE4m3fn, kN, kK);
  PreparedWeight single_ = packed_fp8_.prepare();
  std::vector<std::uint16_t> x_ = test::spread_bf16(random_, kCount, 6);
  Quantized quantized_ = test::quantize(test::widened(x_), kM, kK, 224);
  std::int32_t flag_ = 1;
  // What outputs point to: read only, so that a write would end the program.
  test::GuardedBytes memory_{std::vector<std::uint8_t>(4096, 0xA5)};
  Context context_{{.num_threads = 1}};

  misuse_test() { memory_.unlock(); }

  MutableMatrixView y() { return {memory_.data(), FloatType::kBf16, kM, kN, 0}; }

  template <class Call>
  static void refused(const char* word, Call call) {
    const std::string message = test::refusal(call);
    EXPECT_NE(message.find(word), std::string::npos) << message << "\nexpected: " << word;
  }

  void gemm_refused(const char* word, const QuantizedView& a, const MutableMatrixView& d,
                    std::optional<std::int64_t> group = 0) {
    refused(word, [&] { gemm(context_, a, stacked_, d, group); });
  }

  void qdq_refused(const char* word, const MatrixView& x, const MutableMatrixView& y,
                   std::optional<std::int64_t> group = 0) {
    refused(word, [&] { linear_qdq(context_, x, stacked_, y, group); });
    if (group) {
      refused(word, [&] { linear_qdq_gated(context_, x, stacked_, *group, &flag_, y); });
    }
  }
};

TEST_F(misuse_test, activations_of_gemm) {
  const QuantizedView good = quantized_.view();
  const auto with = [&](const char* word, auto change) {
    QuantizedView a = good;
    change(a);
    gemm_refused(word, a, y());
  };
  with("gemm: a is null", [](QuantizedView& a) { a.codes = nullptr; });
  with("gemm: a's scales are null", [](QuantizedView& a) { a.scales = nullptr; });
  with("gemm: a is [5, 97], expected [5, 96]", [](QuantizedView& a) { a.columns = 97; });
  with("gemm: a has -1 rows", [](QuantizedView& a) { a.rows = -1; });
  with("gemm: a has rows 95 elements apart", [](QuantizedView& a) { a.stride = 95; });
  with("gemm: a has rows -96 elements apart", [](QuantizedView& a) { a.stride = -96; });
  with("gemm: a covers more bytes", [](QuantizedView& a) { a.stride = kHuge; });
  with("gemm: a's scales are [4, 3], expected [5, 3]", [](QuantizedView& a) { a.scale_rows = 4; });
  with("gemm: a's scales are [5, 2], expected [5, 3]",
       [](QuantizedView& a) { a.scale_columns = 2; });
  with("gemm: a's scales have strides -3 and 1", [](QuantizedView& a) { a.scale_stride = -3; });
  with("gemm: a's scales have strides 0 and 0",
       [](QuantizedView& a) { a.scale_column_stride = 0; });
  with("gemm: a's scales cover more bytes", [](QuantizedView& a) { a.scale_stride = 2 * kHuge; });
  with("gemm: a's scales are for blocks of 64 columns", [](QuantizedView& a) { a.block_k = 64; });
  with("gemm: a's scales are neither e8m0 nor f32",
       [](QuantizedView& a) { a.scale_type = ScaleType::kBf16; });
}

TEST_F(misuse_test, outputs) {
  const QuantizedView a = quantized_.view();
  const MatrixView x = rows_of(x_, kM, kK);
  auto* at = memory_.data();
  gemm_refused("gemm: d is null", a, {nullptr, FloatType::kBf16, kM, kN, 0});
  gemm_refused("gemm: d is [5, 63], expected [5, 64]", a, {at, FloatType::kBf16, kM, kN - 1, 0});
  gemm_refused("gemm: d is [4, 64], expected [5, 64]", a, {at, FloatType::kBf16, kM - 1, kN, 0});
  gemm_refused("gemm: d has rows 63 elements apart", a, {at, FloatType::kBf16, kM, kN, kN - 1});
  gemm_refused("gemm: d has rows -64 elements apart", a, {at, FloatType::kBf16, kM, kN, -kN});
  gemm_refused("gemm: d covers more bytes", a, {at, FloatType::kBf16, kM, kN, kHuge});
  gemm_refused("gemm: d is not aligned", a, {at + 1, FloatType::kBf16, kM, kN, 0});
  qdq_refused("y is null", x, {nullptr, FloatType::kBf16, kM, kN, 0});
  qdq_refused("y is [5, 63], expected [5, 64]", x, {at, FloatType::kBf16, kM, kN - 1, 0});
  qdq_refused("y is not aligned", x, {at + 2, FloatType::kF32, kM, kN, 0});
  qdq_refused("y has rows -64 elements apart", x, {at, FloatType::kBf16, kM, kN, -kN});
  refused("gemm_f32: d is bf16, expected f32", [&] { gemm_f32(context_, a, stacked_, y(), 0); });
}

TEST_F(misuse_test, rows_of_x) {
  qdq_refused("x is null", {nullptr, FloatType::kBf16, kM, kK, 0}, y());
  qdq_refused("x is [5, 95], expected [5, 96]", {x_.data(), FloatType::kBf16, kM, kK - 1, 0}, y());
  qdq_refused("x has rows -96 elements apart", {x_.data(), FloatType::kBf16, kM, kK, -kK}, y());
  qdq_refused("x has -2 rows", {x_.data(), FloatType::kBf16, -2, kK, 0}, y());
  refused("linear_qdq: x is null", [&] {
    static_cast<void>(linear_qdq(context_, {nullptr, FloatType::kBf16, kM, kK, 0}, stacked_, 0));
  });
  refused("linear_qdq: x covers more bytes", [&] {
    static_cast<void>(
        linear_qdq(context_, {x_.data(), FloatType::kBf16, kHuge, kK, 0}, stacked_, 0));
  });
}

TEST_F(misuse_test, inputs_that_lie_in_the_output) {
  // Everything lies in one buffer; the output begins where it is to overlap.
  std::vector<std::uint8_t> buffer(1 << 16, 0);
  const auto output = [](const void* at) {
    auto* aligned = reinterpret_cast<std::uint8_t*>(reinterpret_cast<std::uintptr_t>(at) & ~3ULL);
    return MutableMatrixView{aligned, FloatType::kBf16, kM, kN, 0};
  };
  QuantizedView a = quantized_.view();
  gemm_refused("a and d overlap", a, output(a.codes));
  gemm_refused("a's scales and d overlap", a, output(a.scales));
  gemm_refused("the weight's codes and d overlap", a, output(packed_.codes.data()));
  gemm_refused("the weight's scales and d overlap", a, output(packed_.scales.data()));
  const MatrixView x = rows_of(x_, kM, kK);
  qdq_refused("x and y overlap", x, output(x_.data()));
  qdq_refused("the weight's codes and y overlap", x, output(packed_.codes.data()));
  qdq_refused("the weight's scales and y overlap", x, output(packed_.scales.data()));
  const auto* flag = reinterpret_cast<const std::int32_t*>(buffer.data());
  refused("flag and y overlap",
          [&] { linear_qdq_gated(context_, x, stacked_, 0, flag, output(flag)); });
  // Transposed scales: the last one of the last row lies at the end.
  auto* scales = buffer.data() + 1024;
  a.scales = scales;
  a.scale_stride = 1;
  a.scale_column_stride = 1000;
  gemm_refused("a's scales and d overlap", a, output(scales + 2 * 1000 + kM - 1));
  // Slices of a larger weight end where their last row does.
  const WeightView half = slice(packed_.published(), 0, kN / 2, 0, kK);
  std::vector<std::uint16_t> y32(static_cast<std::size_t>(kM * kN / 2));
  linear_qdq_raw(context_, x, half, {y32.data(), FloatType::kBf16, kM, kN / 2, 0});
}

TEST_F(misuse_test, groups) {
  const QuantizedView a = quantized_.view();
  const MatrixView x = rows_of(x_, kM, kK);
  for (const std::int64_t group : {std::int64_t{-1}, std::int64_t{3}, kHuge}) {
    const std::string word = "group " + std::to_string(group) + " is out of range";
    gemm_refused(word.c_str(), a, y(), group);
    qdq_refused(word.c_str(), x, y(), group);
  }
  gemm_refused("needs a group", a, y(), std::nullopt);
  qdq_refused("needs a group", x, y(), std::nullopt);
  refused("not stacked", [&] { gemm(context_, a, single_, y(), 0); });
  refused("not stacked", [&] { linear_qdq_gated(context_, x, single_, 0, &flag_, y()); });
}

TEST_F(misuse_test, flags_and_bare_bytes) {
  const MatrixView x = rows_of(x_, kM, kK);
  refused("linear_qdq_gated: flag is null",
          [&] { linear_qdq_gated(context_, x, stacked_, 0, nullptr, y()); });
  const auto* odd = reinterpret_cast<const std::int32_t*>(memory_.data() + 2);
  refused("linear_qdq_gated: flag is not aligned",
          [&] { linear_qdq_gated(context_, x, stacked_, 0, odd, y()); });
  WeightView bytes = packed_fp8_.published();
  bytes.element = Element::kBf16;  // bytes without a format
  refused("weight 'w'", [&] { linear_qdq_raw(context_, x, bytes, y()); });
  bytes = packed_fp8_.published();
  bytes.scale_type = ScaleType::kF32;
  refused("linear_qdq_raw: w has scales that are not e8m0 bytes",
          [&] { linear_qdq_raw(context_, x, bytes, y()); });
  bytes = packed_fp8_.published();
  bytes.n = bytes.k = kHuge;
  bytes.block_n = bytes.block_k = kHuge;
  bytes.scale_rows = bytes.scale_columns = 1;
  refused("more bytes than there are addresses", [&] { linear_qdq_raw(context_, x, bytes, y()); });
  bytes = packed_fp8_.published();
  bytes.scale_stride = kHuge;
  refused("more bytes than there are addresses", [&] { linear_qdq_raw(context_, x, bytes, y()); });
  Random random(3);
  const std::vector<std::uint8_t> codes = random.bytes(64 * 64 * 2);
  WeightView bf16;
  bf16.codes = codes.data();
  bf16.n = 64;
  bf16.k = 64;
  const PreparedWeight b = PreparedWeight::single(Weight::prepare(bf16, "b"));
  const Quantized q = test::quantize(std::vector<float>(64), 1, 64, 224);
  refused("gemm: b is bf16", [&] {
    gemm(context_, q.view(), b, {memory_.data(), FloatType::kBf16, 1, 64, 0});
  });
  EXPECT_FALSE(supported(context_, q.view(), &b, 64, 64));
}

TEST_F(misuse_test, decoding) {
  const std::vector<std::uint8_t> bytes(64);
  std::vector<float> out(64);
  refused("decode_data: count is -1",
          [&] { decode_data(Element::kE4m3fn, bytes.data(), -1, out.data()); });
  refused("decode_data: codes is null",
          [&] { decode_data(Element::kE4m3fn, nullptr, 1, out.data()); });
  refused("decode_data: out is null",
          [&] { decode_data(Element::kE4m3fn, bytes.data(), 1, nullptr); });
  refused("decode_data: element is bf16",
          [&] { decode_data(Element::kBf16, bytes.data(), 1, out.data()); });
  const auto scales = [&](const char* word, const PackedScales& s, std::int64_t k, float* to) {
    refused(word, [&] { sf_to_scales(s, k, to); });
  };
  scales("sf_to_scales: scales are [1, 2] bytes", {bytes.data(), DType::kU8, 1, 2}, 65, out.data());
  scales("sf_to_scales: scales are [1, 2] bytes", {bytes.data(), DType::kI16, 1, 1}, 65,
         out.data());
  scales("sf_to_scales: scales are F32", {bytes.data(), DType::kF32, 1, 2}, 64, out.data());
  scales("sf_to_scales: scales is null", {nullptr, DType::kU8, 1, 2}, 64, out.data());
  scales("sf_to_scales: out is null", {bytes.data(), DType::kU8, 1, 2}, 64, nullptr);
  scales("sf_to_scales: scales are [1, 2] bytes", {bytes.data(), DType::kU8, 1, 2},
         std::numeric_limits<std::int64_t>::max(), out.data());
  scales("sf_to_scales: scales are", {bytes.data(), DType::kU8, kHuge, kHuge}, kHuge, out.data());
}

TEST_F(misuse_test, case_057_no_rows_are_success_whatever_the_pointers) {
  QuantizedView a = quantized_.view();
  a.codes = a.scales = nullptr;
  a.rows = a.scale_rows = 0;
  const MutableMatrixView none = {nullptr, FloatType::kBf16, 0, kN, 0};
  gemm(context_, a, stacked_, none, 1);
  linear_qdq(context_, {nullptr, FloatType::kBf16, 0, kK, 0}, stacked_, none, 1);
  linear_qdq_gated(context_, {nullptr, FloatType::kBf16, 0, kK, 0}, stacked_, 1, &flag_, none);
  EXPECT_TRUE(linear_qdq(context_, {nullptr, FloatType::kBf16, 0, kK, 0}, stacked_, 1).empty());
}

TEST_F(misuse_test, no_columns_are_success_whatever_the_pointers) {
  for (const Element element : {Element::kE4m3fn, Element::kE2m1}) {
    PackedWeightView view = {element, nullptr, 2, 0, kK, {nullptr, DType::kU8, 0, kK / 32}};
    const PreparedWeight empty = PreparedWeight::prepare(view, "w");
    QuantizedView a = quantized_.view();
    a.codes = a.scales = nullptr;
    const MutableMatrixView none = {nullptr, FloatType::kBf16, kM, 0, 0};
    const MatrixView x = {nullptr, FloatType::kBf16, kM, kK, 0};
    gemm(context_, a, empty, none, 1);
    linear_qdq(context_, x, empty, none, 1);
    linear_qdq_gated(context_, x, empty, 1, &flag_, none);
    linear_qdq_raw(context_, x, slice(packed_fp8_.published(), 3, 0, 0, kK), none);
    EXPECT_TRUE(linear_qdq(context_, x, empty, 1).empty());
    EXPECT_TRUE(supported(context_, a, &empty, kK, 0));
  }
}

}  // namespace
}  // namespace deepinfer
