// Handles of the C interface: models of lists and checkpoints, descriptions; and structs of callers
// that are older or newer than the library.
#include <gtest/gtest.h>

#include <cstddef>

#include "c_api_data.h"
#include "safetensors_builder.h"

namespace deepinfer {
namespace {

using test::Contexts;
using test::Handle;
using test::Packed;
using test::Random;
using test::tensor;

void expect_refusal(deepinfer_status status, const std::string& part,
                    deepinfer_status expected = DEEPINFER_INVALID_ARGUMENT) {
  EXPECT_EQ(status, expected);
  EXPECT_NE(std::string(deepinfer_last_error()).find(part), std::string::npos)
      << "no '" << part << "' in: " << deepinfer_last_error();
}

std::int64_t count_of(const deepinfer_model* model) {
  std::int64_t count = -1;
  EXPECT_OK(deepinfer_model_count(model, &count));
  return count;
}

std::int64_t refused_of(const deepinfer_model* model) {
  std::int64_t count = -1;
  EXPECT_OK(deepinfer_model_num_refused(model, &count));
  return count;
}

deepinfer_weight_info describe(const deepinfer_weight* weight) {
  deepinfer_weight_info info = {};
  info.struct_size = sizeof(info);
  EXPECT_OK(deepinfer_weight_describe(weight, &info));
  return info;
}

/// Two weights that fit, and four that do not.
class ListTest : public ::testing::Test {
 protected:
  deepinfer_status prepare(const Contexts& contexts, deepinfer_model** model) {
    return deepinfer_prepare_model(contexts.c, names.data(), code_pointers.data(),
                                   scale_pointers.data(), 6, model);
  }

  Random random{31};
  Packed fp8{random, false, 0, 64, 96};
  Packed experts{random, true, 3, 32, 64};
  deepinfer_tensor codes[2] = {fp8.codes_tensor(), experts.codes_tensor()};
  deepinfer_tensor scales[2] = {fp8.scales_tensor(), experts.scales_tensor()};
  deepinfer_tensor bf16 = tensor(fp8.codes.data(), DEEPINFER_BF16, {64, 48});
  deepinfer_tensor grid = tensor(fp8.scales.data(), DEEPINFER_U8, {2, 3});
  deepinfer_tensor flat = tensor(fp8.codes.data(), DEEPINFER_F8_E4M3FN, {64 * 96});
  std::vector<const char*> names = {"up", "experts", "norm", "grid", "bare", "flat"};
  std::vector<const deepinfer_tensor*> code_pointers = {&codes[0], &codes[1], &bf16,
                                                        &codes[0], &codes[0], &flat};
  std::vector<const deepinfer_tensor*> scale_pointers = {&scales[0], &scales[1], &scales[0],
                                                         &grid,      nullptr,    &scales[0]};
};

TEST_F(ListTest, c_api_prepares_what_fits_and_says_why_of_the_rest) {
  const Contexts contexts;
  deepinfer_model* model = nullptr;
  ASSERT_OK(prepare(contexts, &model));
  EXPECT_EQ(count_of(model), 2);
  ASSERT_EQ(refused_of(model), 4);
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"bare", "scales is null"}, {"flat", "has rank 1"}, {"grid", "[2, 3]"}, {"norm", "BF16"}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const char* name = nullptr;
    const char* reason = nullptr;
    EXPECT_OK(deepinfer_model_refusal(model, static_cast<std::int64_t>(i), &name, &reason));
    EXPECT_EQ(expected[i].first, name);
    EXPECT_NE(std::string(reason).find(expected[i].second), std::string::npos) << reason;
  }
  const char* name = nullptr;
  const deepinfer_weight* weight = nullptr;
  EXPECT_OK(deepinfer_model_weight(model, 0, &name, &weight));
  EXPECT_STREQ(name, "experts");
  const deepinfer_weight_info info = describe(weight);
  EXPECT_EQ(info.dtype, DEEPINFER_F4_E2M1X2);
  EXPECT_EQ(info.groups, 3);
  EXPECT_EQ(info.n, 32);
  EXPECT_EQ(info.k, 64);
  EXPECT_OK(deepinfer_model_find(model, "up", &weight));
  EXPECT_EQ(describe(weight).groups, DEEPINFER_NO_GROUP);
  EXPECT_OK(deepinfer_model_find(model, "norm", &weight));
  EXPECT_EQ(weight, nullptr);

  for (const std::int64_t index : {-1, 2}) {
    expect_refusal(deepinfer_model_weight(model, index, &name, &weight),
                   "index is " + std::to_string(index));
  }
  const char* reason = nullptr;
  expect_refusal(deepinfer_model_refusal(model, 4, &name, &reason), "index is 4");
  expect_refusal(deepinfer_model_find(model, nullptr, &weight), "name is null");
  expect_refusal(deepinfer_model_find(nullptr, "up", &weight), "model is null");
  expect_refusal(deepinfer_model_count(model, nullptr), "out is null");
  deepinfer_model_destroy(model);
}

TEST_F(ListTest, c_api_prepares_nothing_when_switched_off) {
  const Contexts contexts(0);
  deepinfer_model* model = nullptr;
  ASSERT_OK(prepare(contexts, &model));
  EXPECT_EQ(count_of(model), 0);
  EXPECT_EQ(refused_of(model), 0);
  deepinfer_model_destroy(model);
}

TEST_F(ListTest, c_api_names_the_lists_argument) {
  const Contexts contexts;
  deepinfer_model* model = nullptr;
  names[2] = nullptr;
  expect_refusal(prepare(contexts, &model), "names[2] is null");
  const auto with = [&](const char* const* n, const deepinfer_tensor* const* c,
                        const deepinfer_tensor* const* s, std::int64_t count) {
    return deepinfer_prepare_model(contexts.c, n, c, s, count, &model);
  };
  expect_refusal(with(nullptr, code_pointers.data(), scale_pointers.data(), 1), "names is null");
  expect_refusal(with(names.data(), nullptr, scale_pointers.data(), 1), "codes is null");
  expect_refusal(with(names.data(), code_pointers.data(), nullptr, 1), "scales is null");
  expect_refusal(with(nullptr, nullptr, nullptr, -1), "count is -1");
  EXPECT_EQ(model, nullptr);
  ASSERT_OK(with(nullptr, nullptr, nullptr, 0));
  EXPECT_EQ(count_of(model), 0);
  deepinfer_model_destroy(model);
}

TEST(c_api_handles_test, a_checkpoint_is_prepared_by_name) {
  const testing::TempDir dir;
  testing::write_file(
      dir.path() / "config.json",
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}})");
  testing::SafetensorsBuilder()
      .add("mlp.up.weight", DType::kF8E4m3, {64, 96}, std::vector<std::uint8_t>(64 * 96, 0x38))
      .add("mlp.up.weight_scale_inv", DType::kF8E8m0, {2, 3}, std::vector<std::uint8_t>(6, 127))
      .add("norm.weight", DType::kF32, {4}, std::vector<float>(4))
      .write(dir.path() / "model.safetensors");
  deepinfer_checkpoint* checkpoint = nullptr;
  ASSERT_OK(deepinfer_checkpoint_open(dir.path().c_str(), &checkpoint));
  for (const int gemm : {1, 0}) {
    const Contexts contexts(gemm);
    deepinfer_model* model = nullptr;
    ASSERT_OK(deepinfer_prepare_checkpoint(contexts.c, checkpoint, &model));
    EXPECT_EQ(count_of(model), gemm);
    const deepinfer_weight* weight = nullptr;
    EXPECT_OK(deepinfer_model_find(model, "mlp.up", &weight));
    EXPECT_EQ(weight != nullptr, gemm == 1);
    if (weight != nullptr) {
      EXPECT_EQ(describe(weight).k, 96);
      const std::vector<std::uint16_t> x(96, 0x3F80);  // ones
      std::vector<float> y(64);
      const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {1, 96});
      const deepinfer_tensor out = tensor(y.data(), DEEPINFER_F32, {1, 64});
      EXPECT_OK(deepinfer_linear_qdq(contexts.c, &rows, weight, DEEPINFER_NO_GROUP, &out));
      EXPECT_EQ(y, std::vector<float>(64, 96.0F));
    }
    deepinfer_model_destroy(model);
  }
  deepinfer_checkpoint_close(checkpoint);
  deepinfer_checkpoint_close(nullptr);
  const auto nowhere = dir.path() / "nowhere";
  expect_refusal(deepinfer_checkpoint_open(nowhere.c_str(), &checkpoint), "nowhere",
                 DEEPINFER_BAD_INPUT);
  expect_refusal(deepinfer_checkpoint_open(nullptr, &checkpoint), "path is null");
}

TEST(c_api_handles_test, contexts_name_the_option_that_is_wrong) {
  deepinfer_context* context = nullptr;
  const auto refused = [&](void (*spoil)(deepinfer_context_options&), const char* part,
                           deepinfer_status status = DEEPINFER_INVALID_ARGUMENT) {
    deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
    spoil(options);
    expect_refusal(deepinfer_context_create(&options, &context), part, status);
    EXPECT_EQ(context, nullptr);
  };
  refused([](deepinfer_context_options& o) { o.num_threads = -1; }, "threads: expected 1");
  refused([](deepinfer_context_options& o) { o.gemm = 2; }, "gemm is 2");
  refused([](deepinfer_context_options& o) { o.split2 = -2; }, "split2 is -2");
  refused([](deepinfer_context_options& o) { o.isa = "avx1024"; }, "isa is 'avx1024'");
  static deepinfer_executor executor = {sizeof(executor), nullptr, nullptr, nullptr};
  refused([](deepinfer_context_options& o) { o.executor = &executor; },
          "executor's num_threads is null");
  executor.num_threads = [](void*) { return std::int32_t{0}; };
  refused([](deepinfer_context_options& o) { o.executor = &executor; },
          "executor's parallel is null");
  executor.parallel = [](void*, void (*)(void*, int), void*) {};
  refused([](deepinfer_context_options& o) { o.executor = &executor; }, "executor: expected 1");
  expect_refusal(deepinfer_context_create(nullptr, nullptr), "out is null");
}

// Structs of other versions.

TEST(c_api_handles_test, an_older_callers_missing_fields_have_their_defaults) {
  deepinfer_context_options options = {};  // all switches off, but only num_threads is known
  options.struct_size = offsetof(deepinfer_context_options, gemm);
  options.num_threads = 2;
  deepinfer_context* context = nullptr;
  ASSERT_OK(deepinfer_context_create(&options, &context));
  std::int32_t answer = 0;
  EXPECT_OK(deepinfer_splits_in_two(context, 256, &answer));
  EXPECT_EQ(answer, 1) << "split2 is on unless DEEPINFER_SPLIT2 says otherwise";
  deepinfer_context_destroy(context);

  // Half a field is none.
  options.struct_size = offsetof(deepinfer_context_options, num_threads) + 2;
  options.num_threads = 0x7FFFFFFF;
  ASSERT_OK(deepinfer_context_create(&options, &context));
  deepinfer_context_destroy(context);

  Random random(32);
  const Packed p(random, false, 0, 32, 32);
  const Handle handle(p);
  deepinfer_weight_info info = {};
  info.struct_size = offsetof(deepinfer_weight_info, n);
  info.n = info.k = -7;
  EXPECT_OK(deepinfer_weight_describe(handle.w, &info));
  EXPECT_EQ(info.groups, DEEPINFER_NO_GROUP);
  EXPECT_EQ(info.n, -7) << "the caller has no such field";
  EXPECT_EQ(info.struct_size, offsetof(deepinfer_weight_info, n));
}

/// A struct of a newer version.
template <class T>
struct Newer {
  T known;
  std::uint64_t added;
};

TEST(c_api_handles_test, a_newer_callers_unknown_fields_must_be_zero) {
  Newer<deepinfer_context_options> options = {DEEPINFER_CONTEXT_OPTIONS_INIT, 0};
  options.known.struct_size = sizeof(options);
  deepinfer_context* context = nullptr;
  ASSERT_OK(deepinfer_context_create(&options.known, &context));
  deepinfer_context_destroy(context);
  context = nullptr;
  options.added = std::uint64_t{1} << 63;  // the last byte
  expect_refusal(deepinfer_context_create(&options.known, &context),
                 "options has struct_size " + std::to_string(sizeof(options)));
  options.known.struct_size = std::size_t{1} << 40;
  expect_refusal(deepinfer_context_create(&options.known, &context), "options has struct_size 1");
  EXPECT_EQ(context, nullptr);

  Random random(33);
  const Packed p(random, false, 0, 32, 32);
  Newer<deepinfer_tensor> codes = {p.codes_tensor(), 1};
  codes.known.struct_size = sizeof(codes);
  const deepinfer_tensor scales = p.scales_tensor();
  deepinfer_weight* weight = nullptr;
  expect_refusal(deepinfer_weight_prepare(&codes.known, &scales, "w", &weight),
                 "codes has struct_size");
  codes.added = 0;
  EXPECT_OK(deepinfer_weight_prepare(&codes.known, &scales, "w", &weight));
  deepinfer_weight_destroy(weight);
}

}  // namespace
}  // namespace deepinfer
