#include "runtime/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <system_error>

#include "deepinfer/error.h"
#include "kernels/cpu.h"
#include "runtime/fp_state.h"

namespace deepinfer {
namespace {

thread_local const ThreadPool* leading = nullptr;  // the pool whose thread 0 this is

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Waits until `value` is no longer `old`: first spinning, then asleep in the kernel.
std::uint32_t wait_for_change(std::atomic<std::uint32_t>& value, std::uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    const std::uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

void wait_for_zero(std::atomic<std::uint32_t>& value, int spins) {
  std::uint32_t now = value.load(std::memory_order_acquire);
  while (now != 0) now = wait_for_change(value, now, spins);
}

void pin_this_thread(int cpu) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  // A CPU can leave the container between reading the mask and here: then the thread stays
  // unpinned.
  static_cast<void>(pthread_setaffinity_np(pthread_self(), sizeof(set), &set));
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : num_threads_(num_threads), cpus_(std::move(cpus)) {
  // Spinning threads that share a CPU keep each other from working.
  const bool shared = static_cast<std::size_t>(num_threads) > cpus_.size();
  constexpr int kSpins = 1 << 14;  // some 100 us to 1 ms, longer than any serial part of a model
  spins_ = shared ? 0 : kSpins;
  for (int i = 0; i < num_threads_; ++i) {
    try {
      threads_.emplace_back([this, i] { start(i); });
    } catch (const std::system_error& error) {
      stop();
      throw Error(ErrorCode::kOutOfMemory, fmt::format("thread {} of {} cannot be started: {}",
                                                       i + 1, num_threads_, error.what()));
    }
  }
}

ThreadPool::ThreadPool(Executor& executor)
    : num_threads_(executor.num_threads()), executor_(&executor) {}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  const std::lock_guard<std::mutex> lock(callers_);
  stopping_ = true;
  region_.value.fetch_add(1, std::memory_order_release);
  region_.value.notify_all();
  lead_begun_.value.fetch_add(1, std::memory_order_release);
  lead_begun_.value.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::on_leader() const noexcept { return leading == this; }

void ThreadPool::run_region(FunctionRef<void(int)> task) {
  if (num_threads_ > 1) {
    task_ = &task;
    unfinished_.value.store(static_cast<std::uint32_t>(num_threads_ - 1),
                            std::memory_order_relaxed);
    region_.value.fetch_add(1, std::memory_order_release);
    region_.value.notify_all();
  }
  task(0);
  if (num_threads_ > 1) wait_for_zero(unfinished_.value, spins_);
}

void ThreadPool::run_on_executor(FunctionRef<void(int)> task) {
  const auto run = [](void* context, int index) {
    const auto work = [&] { (*static_cast<FunctionRef<void(int)>*>(context))(index); };
    in_ieee_state(work);
  };
  executor_->parallel(run, &task);
}

void ThreadPool::parallel(FunctionRef<void(int)> task) {
  if (on_leader()) {
    if (executor_ != nullptr) {
      run_on_executor(task);
    } else {
      run_region(task);
    }
  } else {
    lead([&] { parallel(task); });
  }
}

void ThreadPool::lead_here(FunctionRef<void()> work) {
  struct Leading {
    const ThreadPool* outer;
    ~Leading() { leading = outer; }
  } restore = {leading};
  leading = this;
  in_ieee_state(work);
}

void ThreadPool::lead(FunctionRef<void()> work) {
  if (on_leader()) {
    work();
    return;
  }
  const std::lock_guard<std::mutex> lock(callers_);
  if (executor_ != nullptr) {
    lead_here(work);
    return;
  }
  std::exception_ptr failure;
  const auto guard = [&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const FunctionRef<void()> guarded = guard;
  lead_work_ = &guarded;
  const std::uint32_t ended = lead_ended_.value.load(std::memory_order_relaxed);
  lead_begun_.value.fetch_add(1, std::memory_order_release);
  lead_begun_.value.notify_all();
  // The caller is not pinned: spinning long here could take the CPU of a worker.
  wait_for_change(lead_ended_.value, ended, std::min(spins_, 256));
  if (failure) std::rethrow_exception(failure);
}

void ThreadPool::start(int index) {
  // A new thread inherits the floating-point state of its maker, which may be anything.
  struct Call {
    ThreadPool* pool;
    int index;
  } call = {this, index};
  const auto run = [](void* context) {
    const Call& c = *static_cast<Call*>(context);
    c.pool->worker(c.index);
  };
  kernels::with_fp_state(kernels::FpState::kIeee, run, &call);
}

void ThreadPool::worker(int index) {
  if (!cpus_.empty()) pin_this_thread(cpus_[static_cast<std::size_t>(index) % cpus_.size()]);
  std::atomic<std::uint32_t>& begun = index == 0 ? lead_begun_.value : region_.value;
  if (index == 0) leading = this;
  std::uint32_t seen = 0;
  while (true) {
    seen = wait_for_change(begun, seen, spins_);
    if (stopping_) return;
    if (index == 0) {
      (*lead_work_)();
      lead_ended_.value.fetch_add(1, std::memory_order_release);
      lead_ended_.value.notify_all();
    } else {
      (*task_)(index);
      if (unfinished_.value.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        unfinished_.value.notify_all();
      }
    }
  }
}

Share share_of(std::int64_t count, std::int64_t unit, int thread, int num_threads) noexcept {
  const std::int64_t units = (count + unit - 1) / unit;
  const std::int64_t begin = units * thread / num_threads * unit;
  const std::int64_t end = units * (thread + 1) / num_threads * unit;
  return {std::min(begin, count), std::min(end, count)};
}

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The mask of machines with more than 1,024 CPUs needs a larger set.
  for (int capacity = 1024; capacity <= (1 << 16) && cpus.empty(); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(capacity));
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
  }
  return cpus;
}

}  // namespace deepinfer
