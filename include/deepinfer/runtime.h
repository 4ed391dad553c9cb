// Where work runs: threads and instruction set. A Context is passed to everything that computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/format.h"

namespace deepinfer {

class ThreadPool;

/// The name of an instruction set, as in DEEPINFER_ISA.
DEEPINFER_API std::string_view isa_name(Isa isa) noexcept;

/// The instruction set with this name, or nothing.
DEEPINFER_API std::optional<Isa> isa_from_name(std::string_view name) noexcept;

/// Threads that the caller brings along.
class DEEPINFER_API Executor {
 public:
  virtual ~Executor() = default;

  /// Into how many parts work is split; 1 or more, always the same.
  virtual int num_threads() const noexcept = 0;

  /// Calls run(task, i) once for every i in [0, num_threads()), in any order, on any threads, at
  /// the same time or one after another, and returns when all calls have returned. `run` does not
  /// throw.
  virtual void parallel(void (*run)(void* task, int i), void* task) = 0;
};

struct ContextOptions {
  /// 0: DEEPINFER_THREADS, or else the CPUs this process may use, no more than its CPU quota.
  int num_threads = 0;
  /// Nothing: DEEPINFER_ISA, or else the best that this CPU runs.
  std::optional<Isa> isa = std::nullopt;
  /// Does the work instead of threads of our own; must outlive the Context. `num_threads` is then
  /// 0.
  Executor* executor = nullptr;
  /// Whether prepare_model() attaches scales (module.h). Nothing: DEEPINFER_GEMM, on only for "1",
  /// the default.
  std::optional<bool> gemm = std::nullopt;
  /// Whether columns are first divided in two halves (module.h). Nothing: DEEPINFER_SPLIT2, on only
  /// for "1", the default.
  std::optional<bool> split2 = std::nullopt;
};

/// Threads and instruction set. Results do not depend on either.
///
/// Worker threads are pinned to the CPUs of the process; the affinity of calling threads is never
/// touched. Calls that use one Context at the same time from several threads run one after another.
/// A child made by fork() has no worker threads: it needs a Context of its own.
class DEEPINFER_API Context {
 public:
  /// Throws Error(kInvalidArgument) for a value that cannot be read, Error(kUnsupported) for an
  /// instruction set that this CPU or build lacks.
  explicit Context(const ContextOptions& options = {});
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  int num_threads() const noexcept;
  /// Why there are so many, e.g. "CPUs of this process".
  const std::string& threads_reason() const noexcept;

  Isa isa() const noexcept { return isa_; }
  /// Why this one, e.g. "best of this CPU".
  const std::string& isa_reason() const noexcept { return isa_reason_; }

  bool gemm_enabled() const noexcept { return gemm_; }
  bool split2() const noexcept { return split2_; }

  ThreadPool& pool() const noexcept { return *pool_; }

 private:
  Isa isa_;
  bool gemm_;
  bool split2_;
  std::string isa_reason_;
  std::string threads_reason_;
  std::unique_ptr<ThreadPool> pool_;
};

/// One instruction set of this build and what the CPU says to it.
struct IsaInfo {
  std::string_view name;
  bool usable;
  std::string reason;                     ///< empty when usable
  std::vector<std::string_view> kernels;  ///< names of its kernels
};

struct CacheInfo {
  int level;
  std::string type;  ///< "Data", "Instruction" or "Unified"
  std::int64_t bytes;
};

/// The instruction sets that this CPU and build run, best first; the last is the scalar reference.
DEEPINFER_API std::vector<Isa> usable_isas();

/// What `deepinfer info` prints.
struct SystemInfo {
  std::string version;   ///< of this library, e.g. "0.1.0"
  int numeric_contract;  ///< version of docs/determinism.md
  std::string cpu;       ///< model name
  int cpus_allowed;      ///< CPUs in this process's affinity mask
  std::vector<CacheInfo> caches;
  std::vector<IsaInfo> isas;  ///< best first
};

DEEPINFER_API SystemInfo system_info();

}  // namespace deepinfer
