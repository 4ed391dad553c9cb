// Choosing tokens: greedy, limits, the distribution, repeatability.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace deepinfer {
namespace {

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, 3.0F, -1.0F};

std::map<std::int32_t, int> draw(const SamplingOptions& options, int count) {
  Sampler sampler(options);
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sampler.sample(kLogits)];
  return seen;
}

TEST(sampler_test, temperature_zero_takes_the_best_and_the_lowest_of_equals) {
  EXPECT_EQ(draw({}, 10), (std::map<std::int32_t, int>{{1, 10}}));
  EXPECT_EQ(draw({.temperature = 2.0F, .top_k = 1}, 10), (std::map<std::int32_t, int>{{1, 10}}));
}

TEST(sampler_test, frequencies_are_those_of_the_softmax) {
  constexpr int kDraws = 200000;
  const float temperature = 1.5F;
  const auto seen = draw({.temperature = temperature, .seed = 5}, kDraws);
  double total = 0;
  for (const float logit : kLogits) total += std::exp(static_cast<double>(logit / temperature));
  for (std::size_t i = 0; i < kLogits.size(); ++i) {
    const double p = std::exp(static_cast<double>(kLogits[i] / temperature)) / total;
    const double five_sigma = 5 * std::sqrt(p * (1 - p) / kDraws);
    EXPECT_NEAR(seen.at(static_cast<std::int32_t>(i)) / static_cast<double>(kDraws), p, five_sigma);
  }
}

TEST(sampler_test, top_k_and_top_p_leave_the_others_out) {
  const auto two = draw({.temperature = 1.0F, .top_k = 2, .seed = 1}, 1000);
  EXPECT_EQ(two.size(), 2U);
  EXPECT_TRUE(two.contains(1) && two.contains(3));
  // The shares are 0.381 (1), 0.381 (3), 0.140 (2), 0.052 (0), 0.007 (4): 0.8 needs three of them.
  const auto most = draw({.temperature = 1.0F, .top_p = 0.8F, .seed = 1}, 5000);
  EXPECT_EQ(most.size(), 3U);
  EXPECT_TRUE(most.contains(2) && !most.contains(0));
  EXPECT_EQ(draw({.temperature = 1.0F, .top_p = 1e-6F, .seed = 1}, 100),
            (std::map<std::int32_t, int>{{1, 100}}));
}

TEST(sampler_test, a_seed_repeats_and_seeds_differ) {
  const auto sequence = [](std::uint64_t seed) {
    Sampler sampler({.temperature = 1.0F, .seed = seed});
    std::vector<std::int32_t> out;
    for (int i = 0; i < 50; ++i) out.push_back(sampler.sample(kLogits));
    return out;
  };
  EXPECT_EQ(sequence(7), sequence(7));
  EXPECT_NE(sequence(7), sequence(8));
  // The same on every machine: splitmix64 and our own exp.
  const std::vector<std::int32_t> all = sequence(1);
  EXPECT_EQ(std::vector<std::int32_t>(all.begin(), all.begin() + 8),
            (std::vector<std::int32_t>{3, 3, 0, 3, 3, 3, 2, 3}));
}

#if defined(__x86_64__)
TEST(sampler_test, the_callers_rounding_mode_changes_nothing) {
  const auto expected = draw({.temperature = 1.0F, .seed = 3}, 500);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x7F80);  // toward zero
  const auto got = draw({.temperature = 1.0F, .seed = 3}, 500);
  _mm_setcsr(before);
  EXPECT_EQ(got, expected);
}
#endif

TEST(sampler_test, options_out_of_range_are_refused) {
  const float nan = std::nanf("");
  for (const SamplingOptions& options : std::vector<SamplingOptions>{
           {.temperature = -1.0F},
           {.temperature = nan},
           {.temperature = INFINITY},
           {.temperature = 1.0F, .top_k = -1},
           {.temperature = 1.0F, .top_p = 0.0F},
           {.temperature = 1.0F, .top_p = 1.5F},
           {.temperature = 1.0F, .top_p = nan},
       }) {
    EXPECT_THROW(Sampler{options}, Error);
  }
  EXPECT_THROW(Sampler({}).sample({}), Error);
}

}  // namespace
}  // namespace deepinfer
