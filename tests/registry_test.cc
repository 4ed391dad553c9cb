// The list of kernels as people read it.
#include "kernels/registry.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

TEST(registry_test, names_follow_the_grammar_and_are_unique) {
  std::vector<std::string> seen;
  for (const kernels::IsaTable* table : kernels::isa_tables()) {
    for (int i = 0; i < table->num_kernels; ++i) {
      const kernels::Kernel& kernel = table->kernels[i];
      const std::string name = kernel.name;
      const std::string tail = fmt::format("_bf16_{}x{}_{}", kernel.mr, kernel.nr, table->name);
      EXPECT_TRUE(name.starts_with("gemm_") || name.starts_with("gemv_")) << name;
      EXPECT_TRUE(name.ends_with(tail)) << name << " " << tail;
      EXPECT_EQ(kernel.isa, table->isa) << name;
      EXPECT_EQ(std::count(seen.begin(), seen.end(), name), 0) << name;
      seen.push_back(name);
    }
  }
}

}  // namespace
}  // namespace deepinfer
