// Default thread counts under control groups, with faked files.
#include "runtime/cpu_quota.h"

#include <gtest/gtest.h>

#include <fstream>

namespace deepinfer {
namespace {

namespace fs = std::filesystem;

class cpu_quota_test : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            (std::string("quota_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  fs::path root_;
};

TEST_F(cpu_quota_test, v2_takes_the_smallest_limit_on_the_way_up) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 2.0);
}

TEST_F(cpu_quota_test, v2_of_a_container_lies_at_the_mount_point) {
  write("proc/self/cgroup", "0::/of/the/host\n");
  write("sys/fs/cgroup/cpu.max", "765000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 7.65);
}

TEST_F(cpu_quota_test, v1_divides_quota_by_period) {
  write("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n");
  write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.5);
}

TEST_F(cpu_quota_test, no_files_or_no_limit_is_no_quota) {
  EXPECT_FALSE(cpu_quota(root_));
  write("proc/self/cgroup", "no colons here\n0::/\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_FALSE(cpu_quota(root_));
}

TEST(default_threads_test, case_081_the_quota_is_rounded_down) {
  EXPECT_EQ(default_threads(4, std::nullopt), 4);
  EXPECT_EQ(default_threads(4, 2.0), 2);
  EXPECT_EQ(default_threads(16, 7.65), 7);
  EXPECT_EQ(default_threads(4, 0.5), 1);
  EXPECT_EQ(default_threads(4, 64.0), 4);
  EXPECT_EQ(default_threads(0, std::nullopt), 1);
}

}  // namespace
}  // namespace deepinfer
