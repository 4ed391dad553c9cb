// Grouped GEMM against one call per row on the group's own weight: equal bits, and nothing else
// written.
#include "deepinfer/grouped.h"

#include <gtest/gtest.h>

#include <cstring>

#include "deepinfer/error.h"
#include "test_weights.h"

namespace deepinfer {
namespace {

using test::Random;
using test::TestWeight;

constexpr std::int64_t kGroups = 5;
constexpr std::int64_t kN = 50;
constexpr std::int64_t kK = 578;
constexpr std::uint32_t kUntouched = 0x7FABCDEFU;  // a NaN that no store writes

struct Stack {
  std::vector<TestWeight> parts;
  PreparedWeight weight;
};

Stack random_stack(Random& random, const test::FormatCase& format) {
  std::vector<TestWeight> parts;
  std::vector<Weight> weights;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    parts.push_back(test::random_weight(random, format, kN, kK));
    weights.push_back(parts.back().prepare());
  }
  return {std::move(parts), PreparedWeight::stack(std::move(weights))};
}

std::vector<std::uint16_t> random_x(Random& random, std::int64_t m) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(m * kK));
  for (std::uint16_t& v : x) v = random.bf16(20);
  return x;
}

MatrixView view_of(const std::vector<std::uint16_t>& x) {
  return {x.data(), FloatType::kBf16, static_cast<std::int64_t>(x.size()) / kK, kK, 0};
}

/// Row r of x on group g alone, as bits.
std::vector<std::uint32_t> alone(const Context& context, const std::vector<std::uint16_t>& x,
                                 std::int64_t r, const PreparedWeight& w, std::int64_t g,
                                 Activations activations) {
  std::vector<std::uint32_t> y(kN);
  linear(context, {x.data() + r * kK, FloatType::kBf16, 1, kK, 0}, w.at(g),
         {y.data(), FloatType::kF32, 1, kN, 0}, activations);
  return y;
}

/// Expects row r of y to be group g's bits; -1: zeros; -2: untouched.
void expect_rows(const Context& context, const std::vector<std::uint16_t>& x,
                 const PreparedWeight& w, const std::vector<std::int32_t>& groups,
                 const std::vector<std::uint32_t>& y, Activations activations) {
  for (std::size_t r = 0; r < groups.size(); ++r) {
    std::vector<std::uint32_t> expected(kN, groups[r] == -1 ? 0U : kUntouched);
    if (groups[r] >= 0) {
      expected = alone(context, x, static_cast<std::int64_t>(r), w, groups[r], activations);
    }
    EXPECT_EQ(std::memcmp(expected.data(), y.data() + r * kN, kN * 4), 0)
        << "row " << r << " group " << groups[r];
  }
}

class grouped_test : public testing::TestWithParam<test::FormatCase> {
 protected:
  Random random_{21};
  Stack stack_ = random_stack(random_, GetParam());
  const PreparedWeight& w_ = stack_.weight;
  Context reference_{ContextOptions{.num_threads = 1, .isa = Isa::kRef}};
};

TEST_P(grouped_test, contiguous_rows_get_the_bits_of_their_group) {
  const std::vector<std::int32_t> layout = {3, 3, 3, 3, 3, 3, -1, 0, -1, -1, 4, 4, 3, 1};
  const auto m = static_cast<std::int64_t>(layout.size());
  const std::vector<std::uint16_t> x = random_x(random_, m);
  for (const Activations mode : {Activations::kAsIs, Activations::kQuantize224}) {
    for (const int threads : {1, 3}) {
      const Context context({.num_threads = threads});
      std::vector<std::uint32_t> y(layout.size() * kN, kUntouched);
      grouped_linear_contiguous(context, view_of(x), w_, layout,
                                {y.data(), FloatType::kF32, m, kN, 0}, mode);
      expect_rows(reference_, x, w_, layout, y, mode);
    }
  }
}

TEST_P(grouped_test, prefix_ends_mean_the_same_and_the_rest_becomes_zeros) {
  const std::vector<std::int32_t> ends = {2, 2, 7, 8, 8};
  const std::vector<std::int32_t> layout = {0, 0, 2, 2, 2, 2, 2, 3, -1, -1};
  const std::vector<std::uint16_t> x = random_x(random_, 10);
  const Context context;
  std::vector<std::uint32_t> y(10 * kN, kUntouched);
  grouped_linear_prefix(context, view_of(x), w_, ends, {y.data(), FloatType::kF32, 10, kN, 0});
  expect_rows(reference_, x, w_, layout, y, Activations::kQuantize224);
}

TEST_P(grouped_test, masked_rows_are_those_of_the_contiguous_form_and_others_stay) {
  constexpr std::int64_t kMaxM = 3;
  const std::vector<std::int32_t> masked_m = {1, 0, 3, 2, 0};
  const std::vector<std::int32_t> groups = {0, -2, -2, -2, -2, -2, 2, 2, 2, 3, 3, -2, -2, -2, -2};
  const std::vector<std::uint16_t> x = random_x(random_, kGroups * kMaxM);
  const Context context;
  std::vector<std::uint32_t> y(groups.size() * kN, kUntouched);
  grouped_linear_masked(context, view_of(x), w_, masked_m,
                        {y.data(), FloatType::kF32, kGroups * kMaxM, kN, 0});
  expect_rows(reference_, x, w_, groups, y, Activations::kQuantize224);
}

INSTANTIATE_TEST_SUITE_P(formats, grouped_test, testing::ValuesIn(test::kFormatCases),
                         test::name_of_format);

TEST(grouped_misuse_test, is_refused_by_name_before_anything_is_written) {
  Random random(3);
  const Stack stack = random_stack(random, test::kFormatCases[1]);
  const std::vector<std::uint16_t> x = random_x(random, 10);
  const Context context;
  std::vector<std::uint32_t> y(10 * kN, kUntouched);
  const MutableMatrixView out = {y.data(), FloatType::kF32, 10, kN, 0};
  const auto refused = [&](auto call, const char* word) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    for (const std::uint32_t bits : y) ASSERT_EQ(bits, kUntouched) << word;
  };
  using Layout = std::vector<std::int32_t>;
  const auto contiguous = [&](const Layout& layout) {
    return
        [&, layout] { grouped_linear_contiguous(context, view_of(x), stack.weight, layout, out); };
  };
  refused(contiguous(Layout(9, 0)), "grouped_layout has 9 rows, expected 10");
  refused(contiguous({0, 0, 0, 0, 5, 0, 0, 0, 0, 0}), "names group 5 in row 4, of 5");
  refused(contiguous({0, 0, 0, 0, -2, 0, 0, 0, 0, 0}), "names group -2 in row 4");
  const auto prefix = [&](const Layout& ends) {
    return [&, ends] { grouped_linear_prefix(context, view_of(x), stack.weight, ends, out); };
  };
  refused(prefix({1, 2, 3, 4}), "ends has 4 groups, expected 5");
  refused(prefix({1, 2, 1, 4, 5}), "group 2 ends at row 1, expected 2 to 10");
  refused(prefix({1, 2, 3, 4, 11}), "group 4 ends at row 11");
  const auto masked = [&](const Layout& counts) {
    return [&, counts] { grouped_linear_masked(context, view_of(x), stack.weight, counts, out); };
  };
  refused(masked({0, 0, 3, 0, 0}), "3 rows for group 2, expected 0 to 2");
  refused(masked({0, 0, -1, 0, 0}), "-1 rows for group 2");
  const PreparedWeight single = PreparedWeight::single(stack.parts[0].prepare());
  refused([&] { grouped_linear_contiguous(context, view_of(x), single, Layout(10, 0), out); },
          "w is not stacked");
}

TEST(grouped_empty_test, no_rows_touch_nothing) {
  Random random(3);
  const Stack stack = random_stack(random, test::kFormatCases[1]);
  const Context context;
  const MatrixView x = {nullptr, FloatType::kBf16, 0, kK, 0};
  const MutableMatrixView y = {nullptr, FloatType::kF32, 0, kN, 0};
  grouped_linear_contiguous(context, x, stack.weight, {}, y);
  const std::vector<std::int32_t> none(kGroups, 0);
  grouped_linear_prefix(context, x, stack.weight, none, y);
  grouped_linear_masked(context, x, stack.weight, none, y);
}

}  // namespace
}  // namespace deepinfer
