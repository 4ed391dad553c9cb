// Every kernel of the registry against the scalar reference on one thread, bit for bit, through
// linear(): formats x instruction sets x threads x m x n x k x types x activations x strides, every
// buffer next to a page that faults.
//
// The default is a pairwise cover of the small shapes, each line of it on every instruction set,
// and one real shape per format. DEEPINFER_TEST_FULL=1 adds the product of all axes, with real n
// and k (docs/determinism.md says how long that takes).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "kernels/registry.h"
#include "linear_case.h"
#include "pairwise.h"
#include "test_weights.h"
#include "usable_isas.h"
#include "weights/weight.h"

namespace deepinfer {
namespace {

using test::FormatCase;
using test::Inputs;
using test::LinearCase;
using test::Placement;
using test::Problem;
using test::Random;
using test::usable_isas;

// ---- the axes ----

constexpr std::int64_t kM[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 257};
constexpr std::int64_t kSmallN[] = {1, 15, 31, 33, 64, 130, 576};
constexpr std::int64_t kSmallK[] = {1, 31, 33, 96, 258, 512, 544, 576, 600};
constexpr std::int64_t kFullN[] = {1, 31, 33, 576, 2880, 5120};
constexpr std::int64_t kFullK[] = {1, 31, 33, 576, 2880, 5120};
constexpr FloatType kTypes[] = {FloatType::kBf16, FloatType::kF32};
constexpr Activations kActivations[] = {Activations::kAsIs, Activations::kQuantize224,
                                        Activations::kQuantize448};
constexpr Placement kPlacements[] = {Placement::kEndsAtGuard, Placement::kBeginsAtGuard};
constexpr bool kNoYes[] = {false, true};

/// n and k of layers in published models; a format takes one of them.
struct Shape {
  std::int64_t n, k;
};
constexpr Shape kRealShapes[] = {{2304, 5120}, {5120, 2304}, {2880, 2880}, {1536, 576}};

/// 1, 2, 3 and all CPUs.
const std::vector<int>& thread_counts() {
  static const std::vector<int> counts = [] {
    const std::set<int> set = {1, 2, 3, Context().num_threads()};
    return std::vector<int>(set.begin(), set.end());
  }();
  return counts;
}

std::vector<LinearCase> pairwise_cover() {
  const auto rows = test::Pairwise::cover(
      {std::size(test::kFormatCases), std::size(kM), std::size(kSmallN), std::size(kSmallK), 2, 2,
       std::size(kActivations), thread_counts().size(), 2, 2, 2, 2});
  std::vector<LinearCase> cases;
  for (const std::vector<std::size_t>& row : rows) {
    cases.push_back({test::kFormatCases[row[0]], kM[row[1]], kSmallN[row[2]], kSmallK[row[3]],
                     kTypes[row[4]], kTypes[row[5]], kActivations[row[6]], thread_counts()[row[7]],
                     kNoYes[row[8]], kPlacements[row[9]], kNoYes[row[10]], kNoYes[row[11]]});
  }
  return cases;
}

// ---- the tests ----

std::size_t count_numbers(const std::vector<float>& values) {
  return static_cast<std::size_t>(std::count_if(
      values.begin(), values.end(), [](float v) { return std::isfinite(v) && v != 0; }));
}

class kernel_matrix_test : public testing::TestWithParam<FormatCase> {
 private:
  test::FaultReporter reporter_;
};

TEST_P(kernel_matrix_test, every_isa_gives_the_reference_bits_over_a_pairwise_cover) {
  std::size_t outputs = 0;
  std::size_t numbers = 0;
  for (const LinearCase& c : pairwise_cover()) {
    if (c.format.name != GetParam().name) continue;
    LinearCase fitting = c;
    if (c.format.element == Element::kE2m1) fitting.k += c.k % 2;
    const Problem p = solve(fitting, c.m);
    outputs += p.expected.size();
    numbers += count_numbers(p.expected);
    const Inputs inputs(p, fitting);
    const std::vector<std::uint8_t> y = expected_output(p, fitting);
    for (const Isa isa : usable_isas()) ASSERT_TRUE(gives_expected_bits(y, inputs, fitting, isa));
  }
  EXPECT_GT(numbers, outputs / 2) << "NaN, infinity and zero hide what a kernel does";
}

TEST_P(kernel_matrix_test, a_real_shape_gives_the_reference_bits) {
  std::size_t index = 0;
  while (test::kFormatCases[index].name != GetParam().name) ++index;
  const Shape shape = kRealShapes[index % std::size(kRealShapes)];
  constexpr std::int64_t kRows = 5;
  LinearCase c = {GetParam(),
                  kRows,
                  shape.n,
                  shape.k,
                  FloatType::kF32,
                  FloatType::kF32,
                  Activations::kAsIs,
                  thread_counts().back(),
                  false,
                  Placement::kEndsAtGuard,
                  false,
                  false};
  const Problem p = solve(c, kRows);
  for (const std::int64_t m : {std::int64_t{1}, kRows}) {
    c.m = m;
    const Inputs inputs(p, c);
    const std::vector<std::uint8_t> y = expected_output(p, c);
    for (const Isa isa : usable_isas()) {
      if (isa == Isa::kRef) continue;  // that is what it is compared with
      ASSERT_TRUE(gives_expected_bits(y, inputs, c, isa));
    }
  }
}

/// All axes against each other for one [n, k] and one way to take x. The reference runs once, with
/// as many rows as fit: a row's bits do not depend on m, and every m shows it.
void run_product(LinearCase c) {
  // Beyond so many multiply-adds a shape has fewer rows, and the slow reference is not repeated.
  constexpr std::int64_t kMost = std::int64_t{1} << 27;
  constexpr std::int64_t kMostForRef = kMost / 64;
  std::int64_t rows = 0;
  for (const std::int64_t m : kM) rows = m * c.n * c.k <= kMost ? m : rows;
  const Problem p = solve(c, rows);
  for (std::size_t i = 0; i < std::size(kM) && kM[i] <= rows; ++i) {
    for (const bool padded : kNoYes) {
      c.m = kM[i];
      c.padded = padded;
      c.placement = kPlacements[(i + (padded ? 1 : 0)) % 2];
      const Inputs inputs(p, c);
      for (const FloatType y_type : kTypes) {
        c.y_type = y_type;
        const std::vector<std::uint8_t> y = expected_output(p, c);
        for (const Isa isa : usable_isas()) {
          if (isa == Isa::kRef && c.m * c.n * c.k > kMostForRef) continue;
          for (const int threads : thread_counts()) {
            c.threads = threads;
            ASSERT_TRUE(gives_expected_bits(y, inputs, c, isa));
          }
        }
      }
    }
  }
}

class kernel_product_test : public kernel_matrix_test {};

TEST_P(kernel_product_test, every_isa_gives_the_reference_bits) {
  int turn = 0;
  for (const std::int64_t n : kFullN) {
    for (const std::int64_t k : kFullK) {
      for (const FloatType x_type : kTypes) {
        for (const Activations activations : kActivations) {
          // bf16 weights take x as it lies
          if (GetParam().element == Element::kBf16 && activations != Activations::kAsIs) continue;
          LinearCase c = {};
          c.format = GetParam();
          c.n = n;
          c.k = GetParam().element == Element::kE2m1 ? k + k % 2 : k;
          c.x_type = x_type;
          c.activations = activations;
          c.bias = turn % 2 == 1;
          c.special = turn / 2 % 2 == 1;
          ++turn;
          run_product(c);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

std::vector<FormatCase> formats_of_the_product() {
  if (std::getenv("DEEPINFER_TEST_FULL") == nullptr) return {};
  return {std::begin(test::kFormatCases), std::end(test::kFormatCases)};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(kernel_product_test);

INSTANTIATE_TEST_SUITE_P(formats, kernel_matrix_test, testing::ValuesIn(test::kFormatCases),
                         test::name_of_format);
INSTANTIATE_TEST_SUITE_P(formats, kernel_product_test, testing::ValuesIn(formats_of_the_product()),
                         test::name_of_format);

/// The cover is made for formats and shapes; this says that it reaches every line of the registry.
TEST(kernels_test, the_cover_runs_every_kernel) {
  std::set<std::string> reached;
  for (const LinearCase& c : pairwise_cover()) {
    if (c.m == 0) continue;
    Random random(1);
    const Weight w = test::random_weight(random, c.format, 1, 32).prepare();
    for (const Isa isa : usable_isas()) {
      reached.insert(
          kernels::select_kernel(isa, w.view().element, weights::scales_kind(w), c.m).name);
    }
  }
  for (const Isa isa : usable_isas()) {
    const kernels::IsaTable& table = kernels::table_of(isa);
    for (std::int32_t i = 0; i < table.num_kernels; ++i) {
      EXPECT_EQ(reached.count(table.kernels[i].name), 1U)
          << table.kernels[i].name << " is selected by no case";
    }
  }
}

}  // namespace
}  // namespace deepinfer
