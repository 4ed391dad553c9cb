// The kernels under the module's names: shapes, types and bits.
#include "deepinfer/blockquant.h"

#include <gtest/gtest.h>

#include "module_data.h"

namespace deepinfer {
namespace {

using blockquant::ByteMatrix;
using test::linear_bits;
using test::Output16;
using test::packed_weight;
using test::PackedWeight;
using test::Random;
using test::rows_of;
using test::stored_bf16;

constexpr std::int64_t kM = 5;
constexpr std::int64_t kK = 610;

using Linear = void (*)(const Context&, const MatrixView&, const ByteMatrix&, const ByteMatrix&,
                        const MutableMatrixView&);

struct Name {
  const char* name;
  Linear call;
  Element element;
  Activations activations;
  bool halves;
};

constexpr Element kFp8 = Element::kE4m3fn;
constexpr Element kFp4 = Element::kE2m1;
constexpr Activations kQuantized = Activations::kQuantize224;
constexpr Name kNames[] = {
    {"fp8_linear", blockquant::fp8_linear, kFp8, kQuantized, false},
    {"fp8_linear_2core", blockquant::fp8_linear_2core, kFp8, kQuantized, true},
    {"fp8_linear_raw", blockquant::fp8_linear_raw, kFp8, Activations::kAsIs, false},
    {"fp8_linear_raw_2core", blockquant::fp8_linear_raw_2core, kFp8, Activations::kAsIs, true},
    {"fp4_linear", blockquant::fp4_linear, kFp4, kQuantized, false},
    {"fp4_linear_2core", blockquant::fp4_linear_2core, kFp4, kQuantized, true},
};

ByteMatrix codes_of(const PackedWeight& w) {
  return {w.codes.data(), w.view.n, code_row_bytes(w.view.element, w.view.k), 0};
}

ByteMatrix scale_of(const PackedWeight& w) {
  const WeightView v = w.published();
  return {static_cast<const std::uint8_t*>(v.scales), v.scale_rows, v.scale_columns,
          v.scale_stride};
}

TEST(blockquant_test, each_name_has_the_bits_of_its_definition) {
  const Context context({.num_threads = 2});
  for (const Name& name : kNames) {
    for (const std::int64_t n : {256, 512, 70, 1}) {
      Random random(31);
      const PackedWeight w = packed_weight(random, name.element, n, kK);
      const auto x = test::spread_bf16(random, kM * kK, 20);
      Output16 y(kM, n);
      const auto call = [&] {
        name.call(context, rows_of(x, kM, kK), codes_of(w), scale_of(w), y.view);
      };
      if (name.halves && n % 256 != 0) {
        const std::string message = test::refusal(call);
        EXPECT_NE(message.find(std::string(name.name) + ": weight has " + std::to_string(n)),
                  std::string::npos)
            << message;
        EXPECT_EQ(y.bits, Output16(kM, n).bits) << "written before it was refused";
        continue;
      }
      call();
      EXPECT_EQ(y.bits, stored_bf16(linear_bits(context, rows_of(x, kM, kK), w.published(),
                                                name.activations)))
          << name.name << " n = " << n;
    }
  }
}

TEST(blockquant_test, the_gated_kernel_runs_for_1_alone) {
  const Context context({.num_threads = 2});
  Random random(32);
  PackedWeight w = packed_weight(random, kFp4, 256, kK);
  const test::GuardedBytes codes(w.codes);
  const auto x = test::spread_bf16(random, kM * kK, 20);
  ByteMatrix weight = codes_of(w);
  weight.data = codes.data();
  Output16 plain(kM, 256);
  blockquant::fp4_linear_2core(context, rows_of(x, kM, kK), weight, scale_of(w), plain.view);
  std::int32_t flag = 1;
  const auto gated = [&] {
    Output16 y(kM, 256);
    blockquant::fp4_linear_2core_gated(context, rows_of(x, kM, kK), weight, scale_of(w), &flag,
                                       y.view);
    return y.bits;
  };
  EXPECT_EQ(gated(), plain.bits);
  codes.lock();
  for (const std::int32_t closed : {0, 2, -1}) {
    flag = closed;
    EXPECT_EQ(gated(), std::vector<std::uint16_t>(plain.bits.size(), 0)) << closed;
  }
  codes.unlock();
  flag = 1;
  EXPECT_EQ(gated(), plain.bits);
  const PackedWeight ragged = packed_weight(random, kFp4, 70, kK);
  Output16 y(kM, 70);
  EXPECT_NE(test::refusal([&] {
              blockquant::fp4_linear_2core_gated(context, rows_of(x, kM, kK), codes_of(ragged),
                                                 scale_of(ragged), &flag, y.view);
            }).find("weight has 70 rows"),
            std::string::npos);
}

TEST(blockquant_test, misuse_is_refused_by_name_before_anything_is_written) {
  const Context context({.num_threads = 1});
  Random random(33);
  const PackedWeight w = packed_weight(random, kFp8, 64, 64);
  const auto x = test::spread_bf16(random, kM * 64, 6);
  const std::vector<float> wide(x.size());
  Output16 y(kM, 64);
  test::Output32 y32(kM, 64);
  const ByteMatrix codes = codes_of(w);
  const ByteMatrix scale = scale_of(w);
  const auto refused = [&](const MatrixView& in, const ByteMatrix& weight, const ByteMatrix& scales,
                           const MutableMatrixView& out, const char* word) {
    const std::string message =
        test::refusal([&] { blockquant::fp8_linear(context, in, weight, scales, out); });
    EXPECT_NE(message.find(word), std::string::npos) << message << ", expected " << word;
    EXPECT_EQ(y.bits, Output16(kM, 64).bits);
  };
  const MatrixView in = rows_of(x, kM, 64);
  refused(rows_of(wide, kM, 64), codes, scale, y.view, "fp8_linear: x is f32, expected bf16");
  refused(in, codes, scale, y32.view, "fp8_linear: y is f32, expected bf16");
  refused(in, {nullptr, 64, 64, 0}, scale, y.view, "codes are null");
  refused(in, codes, {nullptr, 2, 2, 0}, y.view, "scales are null");
  refused(in, {codes.data, -1, 64, 0}, scale, y.view, "fp8_linear: weight is [-1, 64]");
  refused(in, {codes.data, 64, 64, 63}, scale, y.view, "with rows 63 bytes apart");
  refused(in, {codes.data, 64, 64, -64}, scale, y.view, "with rows -64 bytes apart");
  refused(in, codes, {scale.data, 2, 2, 1}, y.view, "fp8_linear: scale is [2, 2] with rows 1");
  refused(in, codes, {scale.data, 64, 2, 0}, y.view, "expected [2, 2], found [64, 2]");
  refused(in, codes, {scale.data, 2, 1, 0}, y.view, "expected [2, 2], found [2, 1]");
  refused(rows_of(x, kM, 32), codes, scale, y.view, "x is [5, 32], expected [5, 64]");
}

}  // namespace
}  // namespace deepinfer
