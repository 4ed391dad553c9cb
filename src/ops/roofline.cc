#include "deepinfer/roofline.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/registry.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A thread's own result, alone on its cache line.
struct alignas(64) Result {
  std::uint64_t sum = 0;
  std::int64_t operations = 0;
  float sink = 0.0F;
};

}  // namespace

Roofs measure_roofs(const Context& context, const void* data, std::int64_t bytes, double seconds) {
  const kernels::RoofKernels& roofs = *kernels::table_of(context.isa()).roofs;
  ThreadPool& pool = context.pool();
  std::vector<Result> results(static_cast<std::size_t>(pool.num_threads()));
  Roofs best = {};
  constexpr std::int64_t kPage = 4096;
  const Clock::time_point start = Clock::now();
  do {
    for (const int streams : {1, 2, 4}) {
      for (const bool prefetch : {false, true}) {
        const Clock::time_point begin = Clock::now();
        pool.parallel([&](int thread) {
          const Share share =
              share_of(bytes / kPage * kPage, 4 * kPage, thread, pool.num_threads());
          results[static_cast<std::size_t>(thread)].sum +=
              roofs.read(static_cast<const char*>(data) + share.begin, share.end - share.begin,
                         streams, prefetch);
        });
        best.stream_gbps =
            std::max(best.stream_gbps, static_cast<double>(bytes) / seconds_since(begin) * 1e-9);
      }
    }
    for (const int chains : {4, 8, 12}) {
      const Clock::time_point begin = Clock::now();
      constexpr std::int64_t kRounds = 2'000'000;  // some milliseconds
      pool.parallel([&](int thread) {
        Result& result = results[static_cast<std::size_t>(thread)];
        result.operations = roofs.multiply_add(kRounds, chains, &result.sink);
      });
      std::int64_t operations = 0;
      for (const Result& result : results) operations += result.operations;
      best.peak_gflops =
          std::max(best.peak_gflops, static_cast<double>(operations) / seconds_since(begin) * 1e-9);
    }
  } while (seconds_since(start) < seconds);
  return best;
}

}  // namespace deepinfer
