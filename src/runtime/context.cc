// Context: reads the environment (the one place that does) and chooses threads and kernels.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "deepinfer/error.h"
#include "deepinfer/runtime.h"
#include "deepinfer/version.h"
#include "kernels/registry.h"
#include "runtime/cpu_quota.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

constexpr int kMaxThreads = 1024;

const char* environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, at start
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int parse_threads(const char* text) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc() || at != end || value < 1 || value > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("DEEPINFER_THREADS: expected a number from 1 to {}, found '{}'",
                            kMaxThreads, text));
  }
  return value;
}

/// A switch is on for "1" alone, which is the default.
bool switched_on(const std::optional<bool>& wanted, const char* name) {
  if (wanted) return *wanted;
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, at start
  return value == nullptr || std::strcmp(value, "1") == 0;
}

std::string known_isas() {
  std::string names;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  return names;
}

Isa require_isa(Isa isa, std::string_view who) {
  if (const auto reason = kernels::why_not(isa)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {} cannot run here: {}", who, isa_name(isa), *reason));
  }
  return isa;
}

std::pair<Isa, std::string> choose_isa(const std::optional<Isa>& wanted) {
  if (wanted) return {require_isa(*wanted, "instruction set"), "asked for by the caller"};
  if (const char* name = environment("DEEPINFER_ISA")) {
    const auto isa = kernels::isa_from_name(name);
    if (!isa) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("DEEPINFER_ISA: expected one of {}; found '{}'", known_isas(), name));
    }
    return {require_isa(*isa, "DEEPINFER_ISA"), "DEEPINFER_ISA"};
  }
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    if (!kernels::why_not(table->isa)) return {table->isa, "best of this CPU"};
  }
  return {Isa::kRef, "no other runs on this CPU"};
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(": ") + 2);
  }
  return "unknown";
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<CacheInfo> caches() {
  std::vector<CacheInfo> out;
  for (int i = 0;; ++i) {
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", i);
    const std::string level = read_line(base + "level");
    if (level.empty()) return out;
    const std::string size = read_line(base + "size");  // "48K"
    std::int64_t bytes = std::atoll(size.c_str());
    if (!size.empty() && size.back() == 'K') bytes *= 1024;
    if (!size.empty() && size.back() == 'M') bytes *= 1024 * 1024;
    out.push_back({std::atoi(level.c_str()), read_line(base + "type"), bytes});
  }
}

}  // namespace

std::string_view isa_name(Isa isa) noexcept { return kernels::table_of(isa).name; }

std::optional<Isa> isa_from_name(std::string_view name) noexcept {
  return kernels::isa_from_name(name);
}

Context::Context(const ContextOptions& options) {
  std::tie(isa_, isa_reason_) = choose_isa(options.isa);
  gemm_ = switched_on(options.gemm, "DEEPINFER_GEMM");
  split2_ = switched_on(options.split2, "DEEPINFER_SPLIT2");
  if (options.executor != nullptr) {
    const int parts = options.executor->num_threads();
    if (options.num_threads != 0 || parts < 1 || parts > kMaxThreads) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("executor: expected 1 to {} threads and no other number of threads, "
                              "found {} and {}",
                              kMaxThreads, parts, options.num_threads));
    }
    threads_reason_ = "the caller's executor";
    pool_ = std::make_unique<ThreadPool>(*options.executor);
    return;
  }
  const std::vector<int> cpus = allowed_cpus();
  int threads = options.num_threads;
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("threads: expected 1 to {}, found {}", kMaxThreads, threads));
  }
  threads_reason_ = "asked for by the caller";
  if (threads == 0) {
    if (const char* text = environment("DEEPINFER_THREADS")) {
      threads = parse_threads(text);
      threads_reason_ = "DEEPINFER_THREADS";
    } else {
      const std::optional<double> quota = cpu_quota();
      threads = default_threads(static_cast<int>(cpus.size()), quota);
      threads_reason_ = threads < static_cast<int>(cpus.size())
                            ? fmt::format("CPU quota of the control group: {:.3g}", *quota)
                            : "CPUs of this process";
    }
  }
  pool_ = std::make_unique<ThreadPool>(threads, cpus);
}

Context::~Context() = default;

int Context::num_threads() const noexcept { return pool_->num_threads(); }

const std::string& Context::threads_reason() const noexcept { return threads_reason_; }

std::vector<Isa> usable_isas() {
  std::vector<Isa> isas;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    if (!kernels::why_not(table->isa)) isas.push_back(table->isa);
  }
  return isas;
}

SystemInfo system_info() {
  SystemInfo info;
  info.version = kVersion;
  info.numeric_contract = kNumericContract;
  info.cpu = cpu_model();
  info.cpus_allowed = static_cast<int>(allowed_cpus().size());
  info.caches = caches();
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    const auto reason = kernels::why_not(table->isa);
    IsaInfo isa = {table->name, !reason, reason.value_or(""), {}};
    for (int i = 0; i < table->num_kernels; ++i) isa.kernels.emplace_back(table->kernels[i].name);
    info.isas.push_back(std::move(isa));
  }
  return info;
}

}  // namespace deepinfer
