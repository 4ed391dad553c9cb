// The thread pool and the context: who runs what, on which CPUs, in which floating-point state.
#include "deepinfer/runtime.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "deepinfer/error.h"
#include "runtime/thread_pool.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace deepinfer {
namespace {

std::vector<int> affinity() { return allowed_cpus(); }

TEST(runtime_test, every_thread_runs_once_per_region) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads, affinity());
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(threads));
    for (int region = 0; region < 200; ++region) {
      pool.parallel([&](int t) { ++runs[static_cast<std::size_t>(t)]; });
    }
    pool.lead([&] {
      for (int region = 0; region < 200; ++region) {
        pool.parallel([&](int t) { ++runs[static_cast<std::size_t>(t)]; });
      }
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 400) << threads << " threads";
  }
}

TEST(runtime_test, regions_see_what_was_written_before_them) {
  ThreadPool pool(2, affinity());
  std::vector<int> values(64, 0);  // plain memory: the thread sanitizer watches
  for (int region = 1; region <= 100; ++region) {
    pool.parallel([&](int t) {
      for (std::size_t i = static_cast<std::size_t>(t); i < values.size(); i += 2) {
        EXPECT_EQ(values[i ^ 1U], region - 1);  // the other thread's
      }
    });
    pool.parallel([&](int t) {
      for (std::size_t i = static_cast<std::size_t>(t); i < values.size(); i += 2)
        values[i] = region;
    });
  }
}

TEST(runtime_test, several_callers_take_turns) {
  ThreadPool pool(2, affinity());
  std::atomic<int> inside{0};
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        pool.lead([&] {
          EXPECT_EQ(++inside, 1);
          pool.parallel([&](int) { ++total; });
          --inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 50 * 2);
}

TEST(runtime_test, exceptions_of_the_leader_reach_the_caller) {
  ThreadPool pool(2, affinity());
  EXPECT_THROW(pool.lead([] { throw std::runtime_error("x"); }), std::runtime_error);
  std::atomic<int> runs{0};
  pool.parallel([&](int) { ++runs; });  // the pool still works
  EXPECT_EQ(runs.load(), 2);
}

TEST(runtime_test, lead_inside_lead_runs_at_once) {
  ThreadPool pool(2, affinity());
  int runs = 0;
  pool.lead([&] { pool.lead([&] { ++runs; }); });
  EXPECT_EQ(runs, 1);
}

TEST(runtime_test, shares_cover_everything_once) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 576, 1000}) {
    for (const std::int64_t unit : {1, 16}) {
      for (const int threads : {1, 2, 3, 5}) {
        std::int64_t next = 0;
        for (int t = 0; t < threads; ++t) {
          const Share share = share_of(count, unit, t, threads);
          EXPECT_EQ(share.begin, next);
          EXPECT_LE(share.begin, share.end);
          EXPECT_TRUE(share.begin % unit == 0 || share.begin == count);
          next = share.end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(runtime_test, workers_are_pinned_and_the_caller_is_left_alone) {
  const std::vector<int> before = affinity();
  const Context context({.num_threads = 2, .isa = {}});
  std::vector<std::vector<int>> cpus(2);
  context.pool().parallel([&](int t) { cpus[static_cast<std::size_t>(t)] = affinity(); });
  for (std::size_t t = 0; t < cpus.size(); ++t) {
    EXPECT_EQ(cpus[t], (std::vector<int>{before[t % before.size()]}));
  }
  EXPECT_EQ(affinity(), before);
}

#if defined(__x86_64__)
TEST(runtime_test, workers_have_their_own_floating_point_state) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9FC0U | 0x6000U);  // flush, denormals are zero, round toward zero
  const unsigned mine = _mm_getcsr();
  const Context context({.num_threads = 2, .isa = {}});
  std::atomic<int> right{0};
  context.pool().parallel([&](int) { right += (_mm_getcsr() & 0xFFC0U) == 0x1F80U ? 1 : 0; });
  EXPECT_EQ(right.load(), 2);
  EXPECT_EQ(_mm_getcsr(), mine);
  _mm_setcsr(before);
}
#endif

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(runtime_test, environment_chooses_and_bad_values_are_refused) {
  {
    const Environment isa("DEEPINFER_ISA", "ref");
    const Environment threads("DEEPINFER_THREADS", "3");
    const Context context;
    EXPECT_EQ(context.isa(), Isa::kRef);
    EXPECT_EQ(context.num_threads(), 3);
    const Context explicit_wins({.num_threads = 1, .isa = {}});
    EXPECT_EQ(explicit_wins.num_threads(), 1);
  }
  for (const char* bad : {"0", "-1", "two", "3x", "99999", " 2"}) {
    const Environment threads("DEEPINFER_THREADS", bad);
    EXPECT_THROW(Context(), Error) << bad;
  }
  const Environment isa("DEEPINFER_ISA", "avx1024");
  EXPECT_THROW(Context(), Error);
}

TEST(runtime_test, a_context_on_one_cpu_has_one_thread) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(affinity().back()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(Context().num_threads(), 1);
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace
}  // namespace deepinfer
