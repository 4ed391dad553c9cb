// Sources: Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst of Linux.
#include "runtime/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

std::optional<double> ratio(double quota, double period) {
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// "200000 100000" or "max 100000"
std::optional<double> limit_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period)) return std::nullopt;  // "max" is no number
  return ratio(quota, period);
}

std::optional<double> limit_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  return ratio(quota, period);  // -1 is no limit
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// Every group from `group` up to the mount point. A container often sees its own group at the
/// mount point and a path of the host in /proc, so folders that do not exist are passed over.
std::vector<fs::path> way_up(const fs::path& mount, const std::string& group) {
  std::vector<fs::path> folders;
  fs::path relative = fs::path(group).relative_path();
  for (; !relative.empty(); relative = relative.parent_path()) folders.push_back(mount / relative);
  folders.push_back(mount);
  return folders;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> smallest;
  const auto consider = [&](const std::optional<double>& limit) {
    if (limit && (!smallest || *limit < *smallest)) smallest = limit;
  };
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" or "4:cpu,cpuacct:/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& folder : way_up(mounts, group)) consider(limit_v2(folder));
      continue;
    }
    const std::vector<std::string> names = split(controllers, ',');
    if (std::find(names.begin(), names.end(), "cpu") == names.end()) continue;
    for (const std::string& mount : {controllers, std::string("cpu")}) {
      for (const fs::path& folder : way_up(mounts / mount, group)) consider(limit_v1(folder));
    }
  }
  return smallest;
}

int default_threads(int cpus, std::optional<double> quota) noexcept {
  const int all = std::max(1, cpus);
  if (!quota || *quota >= all) return all;
  return std::max(1, static_cast<int>(std::floor(*quota)));
}

}  // namespace deepinfer
