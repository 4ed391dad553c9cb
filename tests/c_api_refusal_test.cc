// What the C interface refuses, by the name of the argument and before anything is written; and the
// questions whose answer is no.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>

#include "c_api_data.h"
#include "deepinfer/module.h"

namespace deepinfer {
namespace {

using test::Contexts;
using test::Handle;
using test::Packed;
using test::prefilled;
using test::Random;
using test::random_x;
using test::tensor;

constexpr std::int64_t kM = 3;
constexpr std::int64_t kN = 256;
constexpr std::int64_t kK = 64;

void expect_refusal(deepinfer_status status, const std::string& part,
                    deepinfer_status expected = DEEPINFER_INVALID_ARGUMENT) {
  EXPECT_EQ(status, expected);
  EXPECT_NE(std::string(deepinfer_last_error()).find(part), std::string::npos)
      << "no '" << part << "' in: " << deepinfer_last_error();
}

/// Good arguments for every function, for tests to spoil one of.
class Arguments {
 public:
  Contexts contexts;
  Random random{21};
  Packed fp8{random, false, 0, kN, kK};
  Packed fp4{random, true, 0, kN, kK};
  Packed stacked{random, true, 2, kN, kK};
  Packed activations{random, false, 0, kM, kK};
  Handle w{fp8};
  Handle experts{stacked};
  std::vector<std::uint16_t> x_data = random_x(random, kM* kK);
  std::vector<std::uint16_t> y_data = prefilled<std::uint16_t>(kM * kN);
  std::int32_t flag_data = 1;
  std::vector<std::uint8_t> grid = std::vector<std::uint8_t>(kN * kK / 32, 127);

  const deepinfer_context* context = contexts.c;
  deepinfer_tensor x = tensor(x_data.data(), DEEPINFER_BF16, {kM, kK});
  deepinfer_tensor y = tensor(y_data.data(), DEEPINFER_BF16, {kM, kN});
  deepinfer_tensor a = activations.codes_tensor();
  deepinfer_tensor sfa = activations.scales_tensor();
  deepinfer_tensor bytes = tensor(fp8.codes.data(), DEEPINFER_U8, {kN, kK});
  deepinfer_tensor scale = tensor(grid.data(), DEEPINFER_U8, {kN / 32, kK / 32});
  deepinfer_tensor fp4_bytes = tensor(fp4.codes.data(), DEEPINFER_U8, {kN, kK / 2});
  deepinfer_tensor fp4_scale = tensor(grid.data(), DEEPINFER_U8, {kN, kK / 32});
  deepinfer_tensor flag = tensor(&flag_data, DEEPINFER_I32, {1, 1});
  const deepinfer_weight* b = w.w;
  const deepinfer_weight* expert = experts.w;
  std::int64_t group = DEEPINFER_NO_GROUP;
  std::int64_t block_k = 32;
  const char* format = "fp8-32x32";

  deepinfer_status gemm() { return deepinfer_gemm(context, &a, &sfa, block_k, b, group, &y); }
  deepinfer_status linear_qdq() { return deepinfer_linear_qdq(context, &x, b, group, &y); }
  deepinfer_status linear_raw() { return deepinfer_linear_raw(context, &x, b, group, &y); }
  deepinfer_status qdq_raw() {
    return deepinfer_linear_qdq_raw(context, &x, &bytes, &scale, format, row_offset, 0, &y);
  }
  deepinfer_status gated() {
    const std::int64_t which = group == DEEPINFER_NO_GROUP ? 1 : group;
    return deepinfer_linear_qdq_gated(context, &x, expert, which, &flag, &y);
  }
  deepinfer_status fp8_kernel() {
    return deepinfer_blockquant_fp8_linear_raw_2core(context, &x, &bytes, &scale, &y);
  }
  deepinfer_status fp4_kernel() {
    return deepinfer_blockquant_fp4_linear_2core_gated(context, &x, &fp4_bytes, &fp4_scale, &flag,
                                                       &y);
  }

  std::int64_t row_offset = 0;
};

using Call = deepinfer_status (Arguments::*)();
using Spoil = void (*)(Arguments&);

/// The call works, and with one argument spoiled is refused with `part` in the text, y untouched.
void expect_refused(Call call, Spoil spoil, const char* part) {
  Arguments arguments;
  spoil(arguments);
  const auto before = arguments.y_data;
  expect_refusal((arguments.*call)(), part);
  EXPECT_EQ(arguments.y_data, before) << part;
}

const std::vector<std::pair<const char*, Call>> kCalls = {
    {"gemm", &Arguments::gemm},
    {"linear_qdq", &Arguments::linear_qdq},
    {"linear_raw", &Arguments::linear_raw},
    {"linear_qdq_raw", &Arguments::qdq_raw},
    {"linear_qdq_gated", &Arguments::gated},
    {"fp8_linear_raw_2core", &Arguments::fp8_kernel},
    {"fp4_linear_2core_gated", &Arguments::fp4_kernel}};

TEST(c_api_refusal_test, the_arguments_of_these_tests_are_good) {
  for (const auto& [name, call] : kCalls) {
    Arguments arguments;
    EXPECT_EQ((arguments.*call)(), DEEPINFER_OK) << name << ": " << deepinfer_last_error();
  }
}

TEST(c_api_refusal_test, every_call_names_its_context_and_output) {
  for (const auto& [name, call] : kCalls) {
    SCOPED_TRACE(name);
    const std::string output = call == &Arguments::gemm ? "d " : "y ";
    expect_refused(
        call, [](Arguments& a) { a.context = nullptr; }, "context is null");
    expect_refused(
        call, [](Arguments& a) { a.y.data = nullptr; }, (output + "is null").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.struct_size = 0; }, (output + "has struct_size 0").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.dtype = 0; }, (output + "has dtype number 0").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.rank = 5; }, (output + "has rank 5").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.shape[1] = kN - 1; }, (output + "is [").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.stride[1] = 2; },
        (output + "has the elements of a row 2 apart").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.stride[0] = -kN; }, (output + "has 3").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.stride[0] = kN - 1; }, (output + "has rows").c_str());
    expect_refused(
        call, [](Arguments& a) { a.y.stride[0] = INT64_MAX / 2; },
        "more bytes than there are addresses");
  }
}

TEST(c_api_refusal_test, every_linear_names_its_x) {
  for (const auto& [name, call] : kCalls) {
    if (call == &Arguments::gemm) continue;
    SCOPED_TRACE(name);
    expect_refused(
        call, [](Arguments& a) { a.x.data = nullptr; }, "x is null");
    expect_refused(
        call, [](Arguments& a) { a.x.dtype = DEEPINFER_I32; }, "x has dtype I32");
    expect_refused(
        call, [](Arguments& a) { a.x.rank = 1; }, "x has rank 1");
    expect_refused(
        call, [](Arguments& a) { a.x.shape[1] = kK - 32; }, "x is [3, 32]");
    expect_refused(
        call, [](Arguments& a) { a.x.stride[1] = kM; }, "x has the elements of a row");
    expect_refused(
        call, [](Arguments& a) { a.x.data = a.y.data; }, "overlap");
  }
  expect_refused(
      &Arguments::linear_raw, [](Arguments& a) { a.x.dtype = DEEPINFER_F32; },
      "x has dtype F32, expected BF16");
}

TEST(c_api_refusal_test, gemm_names_what_it_refuses) {
  const Call gemm = &Arguments::gemm;
  expect_refused(
      gemm, [](Arguments& a) { a.a.dtype = DEEPINFER_U8; }, "a has dtype U8");
  expect_refused(
      gemm, [](Arguments& a) { a.a.data = nullptr; }, "a is null");
  expect_refused(
      gemm, [](Arguments& a) { a.a.stride[1] = 2; }, "a has the elements of a row");
  expect_refused(
      gemm, [](Arguments& a) { a.sfa.dtype = DEEPINFER_BF16; }, "sfa has dtype BF16");
  expect_refused(
      gemm, [](Arguments& a) { a.sfa.data = nullptr; }, "a's scales are null");
  expect_refused(
      gemm, [](Arguments& a) { a.sfa.shape[1] = 1; }, "a's scales are [3, 1]");
  expect_refused(
      gemm, [](Arguments& a) { a.sfa.shape[0] = 2; }, "a's scales are [2, 3]");
  expect_refused(
      gemm, [](Arguments& a) { a.sfa.rank = 3; }, "sfa has rank 3");
  expect_refused(
      gemm,
      [](Arguments& a) {
        a.sfa.dtype = DEEPINFER_I16;
        a.sfa.stride[1] = 3;
      },
      "sfa has the pairs of a row 3 apart");
  expect_refused(
      gemm, [](Arguments& a) { a.block_k = 64; }, "blocks of 64 columns");
  expect_refused(
      gemm, [](Arguments& a) { a.b = nullptr; }, "b is null");
  expect_refused(
      gemm, [](Arguments& a) { a.group = 0; }, "group 0");
  expect_refused(
      gemm, [](Arguments& a) { a.b = a.expert; }, "needs a group");
  Arguments arguments;
  expect_refusal(deepinfer_gemm_f32(arguments.context, &arguments.a, &arguments.sfa, 32,
                                    arguments.b, DEEPINFER_NO_GROUP, &arguments.y),
                 "d is bf16, expected f32");
}

TEST(c_api_refusal_test, weights_and_flags_are_named) {
  for (const Call call : {&Arguments::linear_qdq, &Arguments::linear_raw}) {
    expect_refused(
        call, [](Arguments& a) { a.b = nullptr; }, "w is null");
    expect_refused(
        call, [](Arguments& a) { a.group = -1; }, "group -1");
  }
  expect_refused(
      &Arguments::gated, [](Arguments& a) { a.expert = nullptr; }, "w is null");
  expect_refused(
      &Arguments::gated, [](Arguments& a) { a.group = 2; }, "group 2 is out of range");
  expect_refused(
      &Arguments::gated, [](Arguments& a) { a.group = -1; }, "group -1");
  for (const Call call : {&Arguments::gated, &Arguments::fp4_kernel}) {
    expect_refused(
        call, [](Arguments& a) { a.flag.dtype = DEEPINFER_F32; }, "flag has dtype F32");
    expect_refused(
        call, [](Arguments& a) { a.flag.shape[1] = 2; }, "flag is [1, 2]");
    expect_refused(
        call, [](Arguments& a) { a.flag.rank = 1; }, "flag has rank 1");
    expect_refused(
        call, [](Arguments& a) { a.flag.data = nullptr; }, "flag is null");
  }
  for (const Call call : {&Arguments::qdq_raw, &Arguments::fp8_kernel}) {
    expect_refused(
        call, [](Arguments& a) { a.bytes.dtype = DEEPINFER_BF16; }, "weight has dtype");
    expect_refused(
        call, [](Arguments& a) { a.bytes.data = nullptr; }, "codes are null");
    expect_refused(
        call, [](Arguments& a) { a.bytes.stride[0] = 1; }, "weight");
    expect_refused(
        call, [](Arguments& a) { a.scale.dtype = DEEPINFER_F32; }, "scale has dtype");
    expect_refused(
        call, [](Arguments& a) { a.scale.data = nullptr; }, "scales are null");
    expect_refused(
        call, [](Arguments& a) { a.scale.shape[0] = kN; }, "scale grid");
  }
  expect_refused(
      &Arguments::qdq_raw, [](Arguments& a) { a.format = nullptr; }, "format is null");
  expect_refused(
      &Arguments::qdq_raw, [](Arguments& a) { a.format = "fp8"; }, "format is 'fp8'");
  expect_refused(
      &Arguments::qdq_raw, [](Arguments& a) { a.row_offset = 32; }, "row offset 32");
}

TEST(c_api_refusal_test, preparing_names_what_it_refuses) {
  Random random(22);
  const Packed p(random, false, 0, 64, 64);
  deepinfer_tensor codes = p.codes_tensor();
  deepinfer_tensor scales = p.scales_tensor();
  deepinfer_weight* const untouched = reinterpret_cast<deepinfer_weight*>(&codes);
  deepinfer_weight* out = untouched;
  const auto refused = [&](const deepinfer_tensor* c, const deepinfer_tensor* s, const char* part) {
    expect_refusal(deepinfer_weight_prepare(c, s, "mlp.up", &out), part);
    EXPECT_EQ(out, untouched);
  };
  const auto with = [](deepinfer_tensor t, void (*spoil)(deepinfer_tensor&)) {
    spoil(t);
    return t;
  };
  refused(nullptr, &scales, "codes is null");
  refused(&codes, nullptr, "scales is null");
  auto t = with(codes, [](deepinfer_tensor& c) { c.dtype = DEEPINFER_BF16; });
  refused(&t, &scales, "codes has dtype BF16");
  t = with(scales, [](deepinfer_tensor& s) { s.dtype = DEEPINFER_F32; });
  refused(&codes, &t, "scales has dtype F32");
  t = with(scales, [](deepinfer_tensor& s) { s.shape[1] = 1; });
  refused(&codes, &t, "weight 'mlp.up': scales are [64, 1]");
  t = with(scales, [](deepinfer_tensor& s) { s.stride[0] = 4; });
  refused(&codes, &t, "scales has stride 4 in dimension 0, expected 3");
  t = tensor(scales.data, DEEPINFER_U8, {1, 64, 3});
  refused(&codes, &t, "scales have another rank");
  std::vector<std::uint8_t> uneven = p.scales;
  uneven[3 * 5] ^= 1;
  t = tensor(uneven.data(), DEEPINFER_U8, {64, 3});
  refused(&codes, &t, "rows 0 and 5");
  expect_refusal(deepinfer_weight_prepare(&codes, &scales, nullptr, nullptr), "out is null");
}

TEST(c_api_refusal_test, kernel_scales_that_do_not_fit_are_an_answer) {
  Random random(23);
  for (const std::int64_t e : {0, 2}) {
    const Packed p(random, false, e, 67, 130);
    const deepinfer_tensor codes = p.codes_tensor();
    deepinfer_tensor scales = p.scales_tensor();
    deepinfer_kernel_scale_info info = {};
    info.struct_size = sizeof(info);
    EXPECT_OK(deepinfer_kernel_scale(&codes, &scales, &info, nullptr, 0));
    const auto expected = kernel_scale(p.view());
    ASSERT_TRUE(expected);
    EXPECT_EQ(info.fits, 1);
    EXPECT_EQ(info.groups, e == 0 ? 1 : 2);
    EXPECT_EQ(info.rows, 3);
    EXPECT_EQ(info.columns, 5);
    auto bytes = prefilled<std::uint8_t>(info.groups * 15);
    const auto before = bytes;
    expect_refusal(deepinfer_kernel_scale(&codes, &scales, &info, bytes.data(), 14), "bytes has");
    EXPECT_EQ(bytes, before);
    EXPECT_OK(deepinfer_kernel_scale(&codes, &scales, &info, bytes.data(), bytes.size()));
    EXPECT_EQ(bytes, expected->bytes);

    std::vector<std::uint8_t> uneven = p.scales;
    uneven[static_cast<std::size_t>(p.c) * 66] ^= 1;  // row 66 of the last block of row 64
    scales.data = uneven.data();
    EXPECT_OK(deepinfer_kernel_scale(&codes, &scales, &info, bytes.data(), bytes.size()));
    EXPECT_EQ(info.fits, 0);
    EXPECT_EQ(info.rows, 0);
    const deepinfer_tensor grid = tensor(p.scales.data(), DEEPINFER_U8, {3, 5});
    EXPECT_OK(deepinfer_kernel_scale(&codes, &grid, &info, nullptr, 0));
    EXPECT_EQ(info.fits, 0);
    scales.dtype = DEEPINFER_F32;
    expect_refusal(deepinfer_kernel_scale(&codes, &scales, &info, nullptr, 0), "scales has dtype");
  }
}

TEST(c_api_refusal_test, questions_about_nothing_are_answered_no) {
  Arguments arguments;
  std::int32_t answer = -1;
  const auto no = [&](deepinfer_status status) {
    EXPECT_EQ(status, DEEPINFER_OK);
    EXPECT_EQ(answer, 0);
    answer = -1;
  };
  const deepinfer_context* c = arguments.context;
  no(deepinfer_has_kernel(c, nullptr, &answer));
  no(deepinfer_supported(c, nullptr, nullptr, 32, arguments.b, kK, kN, &answer));
  no(deepinfer_supported(c, &arguments.a, &arguments.sfa, 32, nullptr, kK, kN, &answer));
  no(deepinfer_supported(c, &arguments.a, &arguments.sfa, 32, arguments.b, kK, kN - 1, &answer));
  no(deepinfer_splits_in_two(c, 255, &answer));
  no(deepinfer_fits_module_gated(c, arguments.b, &answer));
  EXPECT_EQ(deepinfer_fits_module_gate(128, 31), 0);
  EXPECT_EQ(deepinfer_fits_module_gate(128, 32), 1);
  EXPECT_OK(deepinfer_fits_module_gated(c, arguments.expert, &answer));
  EXPECT_EQ(answer, 1);
  EXPECT_OK(deepinfer_splits_in_two(c, 512, &answer));
  EXPECT_EQ(answer, 1);
  EXPECT_OK(deepinfer_has_kernel(c, arguments.b, &answer));
  EXPECT_EQ(answer, 1);
  const Contexts off(0, 0);
  no(deepinfer_has_kernel(off.c, arguments.b, &answer));
  no(deepinfer_supported(off.c, &arguments.a, &arguments.sfa, 32, arguments.b, kK, kN, &answer));
  no(deepinfer_fits_module_gated(off.c, arguments.expert, &answer));
  no(deepinfer_splits_in_two(off.c, 512, &answer));
  expect_refusal(deepinfer_has_kernel(nullptr, nullptr, &answer), "context is null");
  expect_refusal(deepinfer_has_kernel(c, nullptr, nullptr), "out is null");
  expect_refusal(deepinfer_fits_module_gated(c, nullptr, &answer), "w is null");
}

}  // namespace
}  // namespace deepinfer
