// Calls through the C interface run on the caller's threads, from several threads at once, and
// without allocating.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "c_api_data.h"
#include "counted_allocations.h"
#include "deepinfer/module.h"

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

struct Counts {
  std::atomic<int> regions{0};
  std::atomic<int> parts{0};
};

TEST(c_api_runtime_test, work_runs_on_the_callers_threads) {
  Counts counts;
  deepinfer_executor executor = {sizeof(executor), &counts, nullptr, nullptr};
  executor.num_threads = [](void*) { return std::int32_t{3}; };
  executor.parallel = [](void* user, void (*run)(void*, int), void* task) {
    auto& seen = *static_cast<Counts*>(user);
    ++seen.regions;
    for (int i = 2; i >= 0; --i) {
      ++seen.parts;
      run(task, i);
    }
  };
  deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
  options.executor = &executor;
  deepinfer_context* context = nullptr;
  ASSERT_OK(deepinfer_context_create(&options, &context));
  executor = {};  // was copied
  Random random(6);
  const Packed p(random, false, 0, 67, 130);
  const Handle handle(p);
  const std::vector<std::uint16_t> x = random_x(random, kM * p.k);
  std::vector<std::uint16_t> y(static_cast<std::size_t>(kM * p.n));
  const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, p.k});
  const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {kM, p.n});
  EXPECT_OK(deepinfer_linear_qdq(context, &rows, handle.w, DEEPINFER_NO_GROUP, &out));
  const Contexts contexts;
  const PreparedWeight cpp = PreparedWeight::prepare(p.view(), "w");
  EXPECT_EQ(y, linear_qdq(contexts.cpp, bf16_rows(x, p.k), cpp));
  EXPECT_GE(counts.regions.load(), 1);
  EXPECT_EQ(counts.parts.load(), 3 * counts.regions.load());
  deepinfer_context_destroy(context);
}

TEST(c_api_runtime_test, an_executor_that_throws_is_a_status) {
  deepinfer_executor executor = {sizeof(executor), nullptr, nullptr, nullptr};
  executor.num_threads = [](void*) { return std::int32_t{2}; };
  executor.parallel = [](void*, void (*)(void*, int), void*) { throw 7; };
  deepinfer_context_options options = DEEPINFER_CONTEXT_OPTIONS_INIT;
  options.executor = &executor;
  deepinfer_context* context = nullptr;
  ASSERT_OK(deepinfer_context_create(&options, &context));
  Random random(7);
  const Packed p(random, false, 0, 32, 32);
  const Handle handle(p);
  const std::vector<std::uint16_t> x = random_x(random, 2 * 32);
  std::vector<std::uint16_t> y(2 * 32);
  const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {2, 32});
  const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {2, 32});
  EXPECT_EQ(deepinfer_linear_qdq(context, &rows, handle.w, DEEPINFER_NO_GROUP, &out),
            DEEPINFER_INTERNAL);
  deepinfer_context_destroy(context);
  executor.num_threads = [](void*) -> std::int32_t { throw 7; };
  EXPECT_EQ(deepinfer_context_create(&options, &context), DEEPINFER_INTERNAL);
}

TEST(c_api_runtime_test, threads_may_call_at_once) {
  const Contexts contexts;
  Random random(8);
  const Packed p(random, true, 0, 256, 256);
  const Handle handle(p);
  const std::vector<std::uint16_t> x = random_x(random, kM * p.k);
  const PreparedWeight cpp = PreparedWeight::prepare(p.view(), "w");
  const auto expected = linear_qdq(contexts.cpp, bf16_rows(x, p.k), cpp);
  const auto work = [&](int thread) {
    for (int i = 0; i < 30; ++i) {
      auto y = prefilled<std::uint16_t>(kM * p.n);
      const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, p.k});
      const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {kM, p.n});
      ASSERT_EQ(deepinfer_linear_qdq(contexts.c, &rows, handle.w, DEEPINFER_NO_GROUP, &out), 0);
      ASSERT_EQ(y, expected);
      // Each thread has its own text.
      ASSERT_EQ(deepinfer_linear_qdq(contexts.c, &rows, handle.w, thread, &out),
                DEEPINFER_INVALID_ARGUMENT);
      const std::string wanted = "group " + std::to_string(thread) + " ";
      ASSERT_NE(std::string(deepinfer_last_error()).find(wanted), std::string::npos);
    }
  };
  std::thread a([&] { work(100); });
  std::thread b([&] { work(200); });
  a.join();
  b.join();
}

/// The allocations of a call that was made before.
template <class Call>
std::int64_t allocations_of(const Call& call) {
  call();
  const std::int64_t before = allocations.load();
  call();
  return allocations.load() - before;
}

TEST(c_api_runtime_test, calls_allocate_nothing_after_the_first) {
  ASSERT_GT(allocations_of([] { delete new int; }), 0) << "the counter does not count";
  const Contexts contexts;
  Random random(9);
  for_each_weight([&](const Packed& p, const deepinfer_weight* w, const PreparedWeight& cpp,
                      std::int64_t c_group, std::optional<std::int64_t> group) {
    const std::vector<std::uint16_t> x = random_x(random, kM * p.k);
    const std::vector<std::uint8_t> scales(static_cast<std::size_t>(p.n * p.c), 125);
    std::vector<std::uint16_t> y(static_cast<std::size_t>(kM * p.n));
    const Packed a(random, false, 0, kM, p.k);
    const deepinfer_tensor rows = tensor(x.data(), DEEPINFER_BF16, {kM, p.k});
    const deepinfer_tensor out = tensor(y.data(), DEEPINFER_BF16, {kM, p.n});
    const deepinfer_tensor codes = a.codes_tensor();
    const deepinfer_tensor sfa = a.scales_tensor();
    const deepinfer_tensor bytes = tensor(p.codes.data(), DEEPINFER_U8, {p.n, p.code_columns()});
    const deepinfer_tensor scale =
        tensor(scales.data(), DEEPINFER_U8, {p.fp4 ? p.n : (p.n + 31) / 32, (p.k + 31) / 32});
    const deepinfer_context* c = contexts.c;
    EXPECT_EQ(0, allocations_of([&] { deepinfer_linear_qdq(c, &rows, w, c_group, &out); }));
    EXPECT_EQ(0, allocations_of([&] { deepinfer_linear_raw(c, &rows, w, c_group, &out); }));
    EXPECT_EQ(0, allocations_of([&] { deepinfer_gemm(c, &codes, &sfa, 32, w, c_group, &out); }));
    const char* format = p.fp4 ? "mxfp4" : "fp8-32x32";
    EXPECT_EQ(0, allocations_of([&] {
                deepinfer_linear_qdq_raw(c, &rows, &bytes, &scale, format, 0, 0, &out);
              }));
    EXPECT_EQ(0, allocations_of([&] {
                (p.fp4 ? deepinfer_blockquant_fp4_linear : deepinfer_blockquant_fp8_linear)(
                    c, &rows, &bytes, &scale, &out);
              }));
    EXPECT_EQ(0, allocations_of([&] {
                linear_qdq(contexts.cpp, bf16_rows(x, p.k), cpp,
                           {y.data(), FloatType::kBf16, kM, p.n, 0}, group);
              }));
  });
}

}  // namespace
}  // namespace deepinfer
