// The C interface gives the bits of the C++ functions.
#include <gtest/gtest.h>

#include "c_api_data.h"
#include "deepinfer/blockquant.h"
#include "deepinfer/module.h"
#include "deepinfer/version.h"

extern "C" int c_api_client(void);

namespace deepinfer {
namespace {

using test::bf16_rows;
using test::Contexts;
using test::for_each_weight;
using test::Handle;
using test::Packed;
using test::prefilled;
using test::Random;
using test::random_x;
using test::tensor;

constexpr std::int64_t kM = 5;

TEST(c_api_test, a_c_program_compiles_and_runs) {
  EXPECT_EQ(c_api_client(), 0) << "line of c_api_client.c; " << deepinfer_last_error();
}

TEST(c_api_test, versions_are_those_of_the_library) {
  EXPECT_STREQ(deepinfer_version(), kVersion);
  EXPECT_EQ(deepinfer_numeric_contract(), kNumericContract);
}

TEST(c_api_test, contexts_have_the_threads_and_the_instruction_set_asked_for) {
  deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
  options.num_threads = 3;
  options.isa = "ref";
  deepinfer_context* context = nullptr;
  ASSERT_OK(deepinfer_context_create(&options, &context));
  std::int32_t threads = 0;
  const char* isa = nullptr;
  EXPECT_OK(deepinfer_context_num_threads(context, &threads));
  EXPECT_OK(deepinfer_context_isa(context, &isa));
  EXPECT_EQ(threads, 3);
  EXPECT_STREQ(isa, "ref");
  deepinfer_context_destroy(context);
  deepinfer_context_destroy(nullptr);
}

TEST(c_api_test, gemm_gives_the_bits_of_the_module) {
  const Contexts contexts;
  Random random(1);
  for_each_weight([&](const Packed& p, const deepinfer_weight* w, const PreparedWeight& cpp,
                      std::int64_t c_group, std::optional<std::int64_t> group) {
    Packed a(random, false, 0, kM, p.k);
    const std::int64_t sums = a.c + a.c % 2;  // int16 holds pairs
    std::vector<std::uint8_t> sfa = random.bytes(static_cast<std::size_t>(kM * sums));
    for (std::uint8_t& s : sfa) s = static_cast<std::uint8_t>(118 + s % 16);
    const QuantizedView view = {.codes = a.codes.data(),
                                .rows = kM,
                                .columns = p.k,
                                .scales = sfa.data(),
                                .scale_rows = kM,
                                .scale_columns = sums};
    const deepinfer_tensor codes = a.codes_tensor();
    for (const auto& scales : {tensor(sfa.data(), DEEPINFER_U8, {kM, sums}),
                               tensor(sfa.data(), DEEPINFER_F8_E8M0, {kM, sums}),
                               tensor(sfa.data(), DEEPINFER_I16, {kM, sums / 2})}) {
      auto d = prefilled<std::uint16_t>(kM * p.n);
      auto expected = prefilled<std::uint16_t>(kM * p.n);
      gemm(contexts.cpp, view, cpp, {expected.data(), FloatType::kBf16, kM, p.n, 0}, group);
      const deepinfer_tensor out = tensor(d.data(), DEEPINFER_BF16, {kM, p.n});
      EXPECT_OK(deepinfer_gemm(contexts.c, &codes, &scales, 32, w, c_group, &out));
      EXPECT_EQ(d, expected);
      std::int32_t answer = -1;
      EXPECT_OK(deepinfer_supported(contexts.c, &codes, &scales, 32, w, p.k, p.n, &answer));
      EXPECT_EQ(answer, 1);
    }
    std::vector<std::vector<float>> f32;
    for (const auto& call : {deepinfer_gemm, deepinfer_gemm_f32}) {
      auto d = prefilled<float>(kM * (p.n + 3));  // strided
      const auto untouched = d;
      const deepinfer_tensor scales = tensor(sfa.data(), DEEPINFER_U8, {kM, sums});
      const deepinfer_tensor out = tensor(d.data(), DEEPINFER_F32, {kM, p.n}, {p.n + 3, 1});
      EXPECT_OK(call(contexts.c, &codes, &scales, 32, w, c_group, &out));
      auto expected = untouched;
      const MutableMatrixView to = {expected.data(), FloatType::kF32, kM, p.n, p.n + 3};
      (f32.empty() ? gemm : gemm_f32)(contexts.cpp, view, cpp, to, group);
      EXPECT_EQ(0, std::memcmp(d.data(), expected.data(), d.size() * sizeof(float)));
      f32.push_back(d);
    }
    EXPECT_NE(0, std::memcmp(f32[0].data(), f32[1].data(), f32[0].size() * sizeof(float)));
  });
}

TEST(c_api_test, gemm_takes_f32_scales_with_strided_columns) {
  const Contexts contexts;
  Random random(2);
  const Packed w(random, false, 0, 40, 256);
  const Handle handle(w);
  const PreparedWeight cpp = PreparedWeight::prepare(w.view(), "w");
  const Packed a(random, false, 0, kM, 256);
  std::vector<float> sfa(2 * kM);  // column by column
  for (std::size_t i = 0; i < sfa.size(); ++i) sfa[i] = 0.3F + static_cast<float>(i);
  const QuantizedView view = {.codes = a.codes.data(),
                              .rows = kM,
                              .columns = 256,
                              .scale_type = ScaleType::kF32,
                              .scales = sfa.data(),
                              .scale_rows = kM,
                              .scale_columns = 2,
                              .scale_stride = 1,
                              .scale_column_stride = kM,
                              .block_k = 128};
  auto d = prefilled<std::uint16_t>(kM * w.n);
  auto expected = d;
  gemm(contexts.cpp, view, cpp, {expected.data(), FloatType::kBf16, kM, w.n, 0});
  const deepinfer_tensor codes = a.codes_tensor();
  const deepinfer_tensor scales = tensor(sfa.data(), DEEPINFER_F32, {kM, 2}, {1, kM});
  const deepinfer_tensor out = tensor(d.data(), DEEPINFER_BF16, {kM, w.n});
  EXPECT_OK(deepinfer_gemm(contexts.c, &codes, &scales, 128, handle.w, DEEPINFER_NO_GROUP, &out));
  EXPECT_EQ(d, expected);
}

TEST(c_api_test, linear_gives_the_bits_of_the_module) {
  const Contexts contexts;
  Random random(3);
  for_each_weight([&](const Packed& p, const deepinfer_weight* w, const PreparedWeight& cpp,
                      std::int64_t c_group, std::optional<std::int64_t> group) {
    const std::vector<std::uint16_t> x = random_x(random, kM * p.k);
    const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, p.k});
    auto y = prefilled<std::uint16_t>(kM * p.n);
    const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {kM, p.n});
    EXPECT_OK(deepinfer_linear_qdq(contexts.c, &rows, w, c_group, &out));
    EXPECT_EQ(y, linear_qdq(contexts.cpp, bf16_rows(x, p.k), cpp, group));

    auto expected = prefilled<std::uint16_t>(kM * p.n);
    const MutableMatrixView to = {expected.data(), FloatType::kBf16, kM, p.n, 0};
    linear(contexts.cpp, bf16_rows(x, p.k), cpp.at(group), to, Activations::kAsIs);
    EXPECT_OK(deepinfer_linear_raw(contexts.c, &rows, w, c_group, &out));
    EXPECT_EQ(y, expected);

    if (p.e == 0) return;
    for (std::int32_t value : {0, 1, 2}) {
      const deepinfer_tensor flag = tensor(&value, DEEPINFER_I32, {1, 1});
      linear_qdq_gated(contexts.cpp, bf16_rows(x, p.k), cpp, *group, &value, to);
      EXPECT_OK(deepinfer_linear_qdq_gated(contexts.c, &rows, w, c_group, &flag, &out));
      EXPECT_EQ(y, expected) << value;
    }
  });
}

TEST(c_api_test, raw_bytes_give_the_bits_of_their_slice) {
  const Contexts contexts;
  Random random(4);
  const std::int64_t n = 100;
  const std::int64_t k = 256;
  const auto codes = random_x(random, n * k / 2);  // any bytes
  const std::vector<std::uint8_t> scales(8 * 4, 125);
  WeightView whole = {.element = Element::kE4m3fn,
                      .codes = codes.data(),
                      .n = n,
                      .k = k,
                      .scale_type = ScaleType::kE8m0,
                      .scales = scales.data(),
                      .scale_rows = 4,
                      .scale_columns = 8,
                      .block_n = 32};
  const WeightView part = slice(whole, 37, 50, 64, 96);
  const std::vector<std::uint16_t> x = random_x(random, kM * 96);
  auto y = prefilled<std::uint16_t>(kM * 50);
  auto expected = y;
  linear_qdq_raw(contexts.cpp, bf16_rows(x, 96), part,
                 {expected.data(), FloatType::kBf16, kM, 50, 0});
  const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, 96});
  const deepinfer_tensor weight = tensor(part.codes, DEEPINFER_U8, {50, 96}, {k, 1});
  const deepinfer_tensor scale =
      tensor(part.scales, DEEPINFER_U8, {part.scale_rows, part.scale_columns}, {8, 1});
  const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {kM, 50});
  EXPECT_OK(deepinfer_linear_qdq_raw(contexts.c, &rows, &weight, &scale, "fp8-32x32",
                                     part.row_offset, part.column_offset, &out));
  EXPECT_EQ(y, expected);
}

TEST(c_api_test, kernels_by_name_give_the_bits_of_their_functions) {
  const Contexts contexts;
  Random random(5);
  const std::int64_t n = 256;
  const std::int64_t k = 96;
  const std::vector<std::uint16_t> x = random_x(random, kM * k);
  const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, k});
  std::vector<std::uint16_t> y(kM * n);
  std::vector<std::uint16_t> expected(kM * n);
  const MutableMatrixView to = {expected.data(), FloatType::kBf16, kM, n, 0};
  const Packed fp8(random, false, 0, n, k);
  const Packed fp4(random, true, 0, n, k);
  const auto check = [&](auto* c, auto* cpp, const Packed& p, auto... flags) {
    const std::int64_t scale_rows = p.fp4 ? n : n / 32;
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_rows * k / 32));
    for (std::uint8_t& s : scales) s = static_cast<std::uint8_t>(120 + random.below(9));
    const deepinfer_tensor weight = tensor(p.codes.data(), DEEPINFER_U8, {n, p.code_columns()});
    const deepinfer_tensor scale = tensor(scales.data(), DEEPINFER_U8, {scale_rows, k / 32});
    cpp(contexts.cpp, bf16_rows(x, k), {p.codes.data(), n, p.code_columns(), 0},
        {scales.data(), scale_rows, k / 32, 0}, flags.data..., to);
    y = prefilled<std::uint16_t>(kM * n);
    const deepinfer_tensor into = tensor(y.data(), DEEPINFER_BF16, {kM, n});
    EXPECT_OK(c(contexts.c, &rows, &weight, &scale, &flags.c..., &into));
    EXPECT_EQ(y, expected);
  };
  check(deepinfer_blockquant_fp8_linear, blockquant::fp8_linear, fp8);
  check(deepinfer_blockquant_fp8_linear_2core, blockquant::fp8_linear_2core, fp8);
  check(deepinfer_blockquant_fp8_linear_raw, blockquant::fp8_linear_raw, fp8);
  check(deepinfer_blockquant_fp8_linear_raw_2core, blockquant::fp8_linear_raw_2core, fp8);
  check(deepinfer_blockquant_fp4_linear, blockquant::fp4_linear, fp4);
  check(deepinfer_blockquant_fp4_linear_2core, blockquant::fp4_linear_2core, fp4);
  struct Flag {
    const std::int32_t* data;
    deepinfer_tensor c;
  };
  for (const std::int32_t value : {0, 1, -1}) {
    check(deepinfer_blockquant_fp4_linear_2core_gated, blockquant::fp4_linear_2core_gated, fp4,
          Flag{&value, tensor(&value, DEEPINFER_I32, {1, 1})});
  }
}

TEST(c_api_test, decoding_is_that_of_the_module) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (const bool fp4 : {false, true}) {
    const std::int64_t values = fp4 ? 512 : 256;
    std::vector<float> out(static_cast<std::size_t>(values));
    auto expected = out;
    decode_data(fp4 ? Element::kE2m1 : Element::kE4m3fn, codes.data(), values, expected.data());
    const auto in =
        tensor(codes.data(), fp4 ? DEEPINFER_F4_E2M1X2 : DEEPINFER_F8_E4M3FN, {2, 8, 16});
    const auto to = tensor(out.data(), DEEPINFER_F32, {2, 8, values / 16});
    EXPECT_OK(deepinfer_decode_data(&in, &to));
    EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)));
  }
  std::vector<float> out(64 * 100);
  auto expected = out;
  sf_to_scales({codes.data(), DType::kI16, 64, 2}, 100, expected.data());
  const deepinfer_tensor in = tensor(codes.data(), DEEPINFER_I16, {64, 2});
  const deepinfer_tensor to = tensor(out.data(), DEEPINFER_F32, {64, 100});
  EXPECT_OK(deepinfer_sf_to_scales(&in, 100, &to));
  EXPECT_EQ(0, std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)));
}

}  // namespace
}  // namespace deepinfer
