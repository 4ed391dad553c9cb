// The generator of test cases, itself tested: a pair that it forgets would be a case nobody runs.
#include "pairwise.h"

#include <gtest/gtest.h>

#include <set>

namespace deepinfer {
namespace {

TEST(pairwise_test, every_two_values_meet) {
  const std::vector<std::size_t> counts = {12, 14, 3, 1, 2};
  const auto rows = test::Pairwise::cover(counts);
  std::set<std::vector<std::size_t>> seen;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      ASSERT_LT(row[i], counts[i]);
      for (std::size_t j = i + 1; j < row.size(); ++j) seen.insert({i, row[i], j, row[j]});
    }
  }
  std::size_t pairs = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (std::size_t j = i + 1; j < counts.size(); ++j) pairs += counts[i] * counts[j];
  }
  EXPECT_EQ(seen.size(), pairs);
  EXPECT_GE(rows.size(), counts[0] * counts[1]);
  EXPECT_LT(rows.size(), counts[0] * counts[1] * 4 / 3);
}

}  // namespace
}  // namespace deepinfer
