// Whose threads do the work, and what a call costs: executors of the caller, calls from several
// threads at once, and no allocation after the first call.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "counted_allocations.h"
#include "deepinfer/blockquant.h"
#include "deepinfer/module.h"
#include "module_data.h"

namespace deepinfer {
namespace {

using test::Output32;
using test::packed_weight;
using test::PackedWeight;
using test::Quantized;
using test::Random;
using test::rows_of;

constexpr std::int64_t kM = 9;
constexpr std::int64_t kN = 300;
constexpr std::int64_t kK = 610;

/// One after another, last part first, on the thread that calls.
class Serial : public Executor {
 public:
  explicit Serial(int parts) : parts_(parts) {}
  int num_threads() const noexcept override { return parts_; }
  void parallel(void (*run)(void* task, int i), void* task) override {
    ++calls;
    for (int i = parts_ - 1; i >= 0; --i) run(task, i);
  }
  int calls = 0;

 private:
  int parts_;
};

/// A new thread for each part.
class Threads : public Executor {
 public:
  int num_threads() const noexcept override { return 3; }
  void parallel(void (*run)(void* task, int i), void* task) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([=] { run(task, i); });
    for (std::thread& thread : threads) thread.join();
  }
};

/// Every kind of call with data of its own.
class Calls {
 public:
  Calls() {
    for (std::size_t i = 0; i < foreign_scales_.size(); ++i) {
      foreign_scales_[i] = i % 3 == 0 ? 0.3F : 0.5F;
    }
    foreign_.scale_type = ScaleType::kF32;
    foreign_.scales = foreign_scales_.data();
  }

  static constexpr int kCount = 7;

  /// Call `which` into `y` of f32 [m, n].
  void run(const Context& context, int which, const MutableMatrixView& y) const {
    const MatrixView x = rows_of(x_, kM, kK);
    switch (which) {
      case 0:
        return linear(context, x, published_, y);
      case 1:
        return linear_qdq(context, x, fp8_, y);
      case 2:
        return gemm_f32(context, quantized_.view(), fp8_, y);
      case 3:
        return gemm_f32(context, foreign_, fp8_, y);
      case 4:
        return gemm_f32(context, foreign_, fp4_, y, 1);
      case 5:
        return linear_qdq_gated(context, x, fp4_, 1, &flag_, y);
      default:
        return linear_qdq_raw(context, x, slice(packed_fp4_.published(1), 0, kN, 0, kK), y);
    }
  }

  std::vector<std::vector<std::uint32_t>> bits(const Context& context) const {
    std::vector<std::vector<std::uint32_t>> out;
    for (int which = 0; which < kCount; ++which) {
      Output32 y(kM, kN);
      run(context, which, y.view);
      out.push_back(y.bits);
    }
    return out;
  }

 private:
  Random random_{51};
  PackedWeight packed_fp8_ = packed_weight(random_, Element::kE4m3fn, kN, kK);
  PackedWeight packed_fp4_ = packed_weight(random_, Element::kE2m1, kN, kK, 2);
  PreparedWeight fp8_ = packed_fp8_.prepare();
  PreparedWeight fp4_ = packed_fp4_.prepare();
  Weight published_ = Weight::prepare(packed_fp8_.published(), "w");
  std::vector<std::uint16_t> x_ = test::spread_bf16(random_, kM* kK, 8);
  Quantized quantized_ = test::quantize(test::widened(x_), kM, kK, 448);
  std::vector<float> foreign_scales_ = std::vector<float>(quantized_.scales.size());
  QuantizedView foreign_ = quantized_.view();
  std::int32_t flag_ = 1;
};

TEST(executor_test, any_executor_gives_the_same_bits) {
  const Calls calls;
  const auto expected = calls.bits(Context({.num_threads = 1}));
  for (const int parts : {1, 2, 7}) {
    Serial serial(parts);
    const Context context({.executor = &serial});
    EXPECT_EQ(context.num_threads(), parts);
    EXPECT_EQ(calls.bits(context), expected) << parts;
    EXPECT_GE(serial.calls, Calls::kCount) << "it did none of the work";
  }
  Threads threads;
  EXPECT_EQ(calls.bits(Context({.executor = &threads})), expected);
}

TEST(executor_test, its_number_of_threads_is_the_only_one) {
  Serial serial(2);
  const auto made = [&](const ContextOptions& options) {
    return test::refusal([&] { Context context(options); });
  };
  EXPECT_NE(made({.num_threads = 2, .executor = &serial}).find("executor"), std::string::npos);
  Serial none(0);
  EXPECT_NE(made({.executor = &none}).find("executor"), std::string::npos);
  EXPECT_EQ(made({.executor = &serial}), "accepted");
}

TEST(executor_test, what_an_executor_throws_reaches_the_caller_and_harms_nothing) {
  class Failing : public Serial {
   public:
    Failing() : Serial(2) {}
    void parallel(void (*run)(void* task, int i), void* task) override {
      if (fail) throw std::runtime_error("no threads left");
      Serial::parallel(run, task);
    }
    bool fail = true;
  };
  const Calls calls;
  Failing failing;
  const Context context({.executor = &failing});
  EXPECT_THROW(calls.bits(context), std::runtime_error);
  failing.fail = false;
  EXPECT_EQ(calls.bits(context), calls.bits(Context({.num_threads = 1})));
}

/// Several threads at once, each with all calls; `context_of` gives each its Context.
void call_at_once(const Calls& calls, const std::function<const Context&(int)>& context_of) {
  const auto expected = calls.bits(Context({.num_threads = 1}));
  constexpr int kCallers = 4;
  std::atomic<int> right{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 3; ++repeat) {
        right += calls.bits(context_of(i)) == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(right.load(), kCallers * 3);
}

TEST(reentrancy_test, several_threads_share_one_context) {
  const Calls calls;
  const Context own({.num_threads = 2});
  call_at_once(calls, [&](int) -> const Context& { return own; });
  Threads threads;
  const Context lent({.executor = &threads});
  call_at_once(calls, [&](int) -> const Context& { return lent; });
}

TEST(reentrancy_test, several_threads_have_a_context_each) {
  const Calls calls;
  std::vector<std::unique_ptr<Context>> contexts;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<Context>(ContextOptions{.num_threads = 1 + i % 2}));
  }
  call_at_once(calls,
               [&](int i) -> const Context& { return *contexts[static_cast<std::size_t>(i)]; });
}

TEST(allocation_test, only_the_first_call_of_a_kind_allocates) {
  const Calls calls;
  Serial serial(3);
  const Context own({.num_threads = 2});
  const Context lent({.executor = &serial});
  for (const Context* context : {&own, &lent}) {
    Output32 y(kM, kN);
    for (int which = 0; which < Calls::kCount; ++which) calls.run(*context, which, y.view);
    const std::int64_t before = allocations.load();
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (int which = 0; which < Calls::kCount; ++which) {
        calls.run(*context, which, y.view);
        EXPECT_EQ(allocations.load(), before) << "call " << which;
      }
    }
  }
  const std::int64_t before = allocations.load();
  const auto counts = std::make_unique<int>(1);
  EXPECT_GT(allocations.load(), before) << "the count counts nothing";
}

}  // namespace
}  // namespace deepinfer
