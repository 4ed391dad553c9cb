// How much CPU time the control group of this process may use.
#pragma once

#include <filesystem>
#include <optional>

namespace deepinfer {

/// CPUs' worth of time per period, e.g. 7.65; nothing without a limit. The smallest limit on the
/// way up from this process's group counts, of cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us).
/// `root` is
/// "/" but for tests.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

/// Threads to start by default for `cpus` in the affinity mask: the quota rounded down, at least 1.
int default_threads(int cpus, std::optional<double> quota) noexcept;

}  // namespace deepinfer
