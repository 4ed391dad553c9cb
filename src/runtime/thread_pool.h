// A pool with a static split: thread t of T always gets the same share, and results never depend on
// T. Waiting threads spin for a while, since the parallel regions of a decode step follow each
// other within microseconds, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "deepinfer/runtime.h"
#include "runtime/function_ref.h"

namespace deepinfer {

class ThreadPool {
 public:
  /// `cpus`: worker t is pinned to cpus[t % size]; empty: not pinned. Throws Error(kOutOfMemory)
  /// when the system does not give so many threads.
  ThreadPool(int num_threads, std::vector<int> cpus);
  /// No threads of its own: the caller's do the work.
  explicit ThreadPool(Executor& executor);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const noexcept { return num_threads_; }

  /// Runs task(t) for every t in [0, num_threads) at once and returns when all are done. The caller
  /// waits; inside lead() it works as thread 0. Tasks must not throw, and
  /// must not call parallel() or lead() from a thread other than 0. Threads of the pool run with
  /// MXCSR 0x1F80, whatever the caller's is.
  void parallel(FunctionRef<void(int)> task);

  /// Runs `work` on the pinned thread 0, whose calls to parallel() then need no hand-over: the way
  /// to run many parallel regions. The first exception of `work` is thrown here.
  void lead(FunctionRef<void()> work);

 private:
  void start(int index);
  void stop();
  void worker(int index);
  bool on_leader() const noexcept;
  void run_region(FunctionRef<void(int)> task);

  struct alignas(64) Line {
    std::atomic<std::uint32_t> value{0};
  };

  void lead_here(FunctionRef<void()> work);
  void run_on_executor(FunctionRef<void(int)> task);

  int num_threads_;
  Executor* executor_ = nullptr;
  std::vector<int> cpus_;
  int spins_ = 0;
  std::mutex callers_;  // one caller at a time leads
  const FunctionRef<void(int)>* task_ = nullptr;
  const FunctionRef<void()>* lead_work_ = nullptr;
  bool stopping_ = false;
  Line region_;      // counts parallel regions; workers 1.. wait for it to move
  Line unfinished_;  // workers still in the region
  Line lead_begun_;  // counts lead() calls; worker 0 waits for it
  Line lead_ended_;
  std::vector<std::thread> threads_;
};

/// Half-open range of `count` things, in units of `unit`, that thread t of T works on.
struct Share {
  std::int64_t begin;
  std::int64_t end;
};
Share share_of(std::int64_t count, std::int64_t unit, int thread, int num_threads) noexcept;

/// The CPUs in the calling thread's affinity mask.
std::vector<int> allowed_cpus();

}  // namespace deepinfer
