// Choosing experts: scores and weights against doubles, ranking, groups, tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "deepinfer/error.h"
#include "deepinfer/experts.h"
#include "random_data.h"

namespace deepinfer {
namespace {

using test::Random;

/// The rules of route() in doubles, for scores without near-ties.
std::vector<std::int32_t> best_of(const std::vector<double>& ranked, std::int64_t k) {
  std::vector<std::int32_t> order(ranked.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return ranked[static_cast<std::size_t>(a)] > ranked[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

TEST(routing_test, scores_and_weights_agree_with_doubles) {
  constexpr std::int64_t kN = 64;
  constexpr std::int64_t kTopK = 6;
  Random random(4);
  std::vector<float> logits = test::random_floats(random, kN);
  for (float& v : logits) v *= 5.0F;  // more, and sigmoids are 1 in f32
  const Context context;
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid,
                                  RouterScore::kSqrtSoftplus, RouterScore::kSoftmaxOfTopK}) {
    const RoutingRules rules = {.score = score, .top_k = kTopK, .scale = 1.5F};
    std::vector<std::int32_t> ids(kTopK);
    std::vector<float> weights(kTopK);
    route(context, logits.data(), 1, kN, rules, nullptr, ids.data(), weights.data());
    std::vector<double> scores;
    for (const float v : logits) {
      const double x = v;
      switch (score) {
        case RouterScore::kSigmoid:
          scores.push_back(1 / (1 + std::exp(-x)));
          break;
        case RouterScore::kSqrtSoftplus:
          scores.push_back(std::sqrt(std::log1p(std::exp(x))));
          break;
        default:
          scores.push_back(std::exp(x));
          break;
      }
    }
    EXPECT_EQ(ids, best_of(scores, kTopK));
    double sum = 0;
    for (const std::int32_t id : ids) sum += scores[static_cast<std::size_t>(id)];
    for (std::size_t i = 0; i < kTopK; ++i) {
      const double expected = scores[static_cast<std::size_t>(ids[i])] / sum * 1.5;
      // score, sum of six, division and scale: each within a few ulp of f32
      EXPECT_NEAR(weights[i], expected, expected * 32 * 0x1p-24) << static_cast<int>(score);
    }
  }
}

TEST(routing_test, ties_go_to_the_lower_index_and_bias_moves_only_the_ranking) {
  const std::vector<float> logits = {0.0F, 1.0F, 1.0F, 0.0F, 1.0F};
  const Context context;
  RoutingRules rules = {.score = RouterScore::kSigmoid, .top_k = 3, .normalize = false};
  std::vector<std::int32_t> ids(3);
  std::vector<float> weights(3);
  route(context, logits.data(), 1, 5, rules, nullptr, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 2, 4}));
  const std::vector<float> bias = {9.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  route(context, logits.data(), 1, 5, rules, bias.data(), ids.data(), weights.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(weights[0], 0.5F);  // the sigmoid of 0, without its bias
}

TEST(routing_test, only_the_best_groups_are_ranked) {
  // Groups of three; the best two of each add up to 3, 11, 10, 9: groups 1 and 2.
  const std::vector<float> logits = {1, 2, 0, 10, 1, 0, 5, 5, 4, 9, 0, 0};
  const Context context;
  const RoutingRules rules = {
      .score = RouterScore::kSoftmaxOfTopK, .top_k = 3, .groups = 4, .top_groups = 2};
  std::vector<std::int32_t> ids(3);
  std::vector<float> weights(3);
  route(context, logits.data(), 1, 12, rules, nullptr, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{3, 6, 7}));
}

TEST(routing_test, hashed_tokens_take_the_experts_of_their_table) {
  const std::vector<float> logits = {0, 0, 0, 0, 1, 2, 3, 4};
  const std::vector<std::int32_t> table = {0, 1, 2, 3, 3, 0};
  const std::vector<std::int32_t> tokens = {2, 1};
  const Context context;
  const RoutingRules rules = {.score = RouterScore::kSigmoid, .top_k = 2};
  std::vector<std::int32_t> ids(4);
  std::vector<float> weights(4);
  route_hashed(context, logits.data(), 2, 4, rules, table, tokens, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{3, 0, 2, 3}));
  EXPECT_EQ(weights[0], 0.5F);
  const std::vector<std::int32_t> bad = {3, 1};
  EXPECT_THROW(
      route_hashed(context, logits.data(), 2, 4, rules, table, bad, ids.data(), weights.data()),
      Error);
}

TEST(routing_test, a_nan_ranks_last_and_threads_change_nothing) {
  constexpr std::int64_t kN = 12;
  Random random(11);
  std::vector<float> logits = test::random_floats(random, 50 * kN);
  logits[3] = std::nanf("");
  const RoutingRules rules = {.score = RouterScore::kSqrtSoftplus, .top_k = 4, .normalize = false};
  std::vector<std::int32_t> ids(50 * 4);
  std::vector<float> weights(50 * 4);
  route(Context({.num_threads = 1}), logits.data(), 50, kN, rules, nullptr, ids.data(),
        weights.data());
  for (int i = 0; i < 4; ++i) EXPECT_NE(ids[static_cast<std::size_t>(i)], 3);
  std::vector<std::int32_t> other_ids(ids.size());
  std::vector<float> other(weights.size());
  route(Context({.num_threads = 3}), logits.data(), 50, kN, rules, nullptr, other_ids.data(),
        other.data());
  EXPECT_EQ(ids, other_ids);
  EXPECT_EQ(std::memcmp(weights.data(), other.data(), weights.size() * 4), 0);
}

}  // namespace
}  // namespace deepinfer
