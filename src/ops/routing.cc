// Choosing experts: scores, ranking, weights. Everything in f32 with the functions of math.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "deepinfer/experts.h"
#include "formats/bf16.h"
#include "kernels/math.h"
#include "kernels/registry.h"
#include "ops/arguments.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

/// ln(1 + e^x) in double; exact enough to round to f32 everywhere.
double softplus64(double x) {
  const double magnitude = x < 0 ? -x : x;
  if (!(magnitude < 700)) return x > 0 ? x : x == x ? 0.0 : x;
  const double t = kernels::exp64(-magnitude);
  // 1 + t loses t's digits when t is small: then the series of ln(1 + t).
  constexpr double kSmall = 0x1p-20;
  const double tail = t < kSmall ? t * (1.0 - t * (0.5 - t / 3.0)) : kernels::log64(1.0 + t);
  return (x > 0 ? x : 0.0) + tail;
}

/// Whether score a of expert i goes before score b of expert j.
bool goes_before(float a, std::int64_t i, float b, std::int64_t j) {
  const bool a_nan = a != a;
  const bool b_nan = b != b;
  if (a_nan || b_nan) return a_nan == b_nan ? i < j : b_nan;
  return a != b ? a > b : i < j;
}

/// Buffers of one thread.
struct Scratch {
  std::vector<float> scores;  // [num_experts]
  std::vector<float> ranked;  // scores + bias
  std::vector<std::int32_t> group_order;
  std::vector<std::uint8_t> allowed;  // [groups]
};

class Router {
 public:
  Router(const Context& context, std::int64_t num_experts, const RoutingRules& rules,
         const float* bias)
      : rows_(*kernels::table_of(context.isa()).rows),
        num_experts_(num_experts),
        rules_(rules),
        bias_(bias) {}

  void reserve(Scratch& s) const {
    s.scores.resize(static_cast<std::size_t>(num_experts_));
    s.ranked.resize(static_cast<std::size_t>(num_experts_));
    s.group_order.resize(static_cast<std::size_t>(rules_.groups));
    s.allowed.resize(static_cast<std::size_t>(rules_.groups));
  }

  void score(const float* logits, Scratch& s) const {
    float* scores = s.scores.data();
    float largest = 0.0F;
    float sum = 1.0F;
    if (rules_.score == RouterScore::kSoftmax) sum = rows_.exp_sum(logits, num_experts_, &largest);
    for (std::int64_t i = 0; i < num_experts_; ++i) {
      switch (rules_.score) {
        case RouterScore::kSoftmax:
          scores[i] = kernels::exp32(logits[i] - largest) / sum;
          break;
        case RouterScore::kSigmoid:
          scores[i] = 1.0F / (1.0F + kernels::exp32(-logits[i]));
          break;
        case RouterScore::kSqrtSoftplus:
          scores[i] = std::sqrt(static_cast<float>(softplus64(static_cast<double>(logits[i]))));
          break;
        case RouterScore::kSoftmaxOfTopK:
          scores[i] = logits[i];
          break;
      }
    }
  }

  void rank(Scratch& s, std::int32_t* ids) const {
    for (std::int64_t i = 0; i < num_experts_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      s.ranked[at] = bias_ != nullptr ? s.scores[at] + bias_[i] : s.scores[at];
    }
    choose_groups(s);
    const std::int64_t group_size = num_experts_ / rules_.groups;
    std::int64_t count = 0;
    for (std::int64_t g = 0; g < rules_.groups; ++g) {
      if (s.allowed[static_cast<std::size_t>(g)] == 0) continue;
      for (std::int64_t i = g * group_size; i < (g + 1) * group_size; ++i) {
        count = insert(s, i, count, ids);
      }
    }
  }

  /// Weights of the chosen experts, from scores without bias.
  void weigh(const Scratch& s, const std::int32_t* ids, float* weights) const {
    const std::int64_t k = rules_.top_k;
    for (std::int64_t i = 0; i < k; ++i) weights[i] = s.scores[static_cast<std::size_t>(ids[i])];
    if (rules_.score == RouterScore::kSoftmaxOfTopK) {
      float largest = 0.0F;
      const float sum = rows_.exp_sum(weights, k, &largest);
      for (std::int64_t i = 0; i < k; ++i) weights[i] = kernels::exp32(weights[i] - largest) / sum;
    } else if (rules_.normalize) {
      float lanes[kernels::kLanes] = {};
      for (std::int64_t i = 0; i < k; ++i) lanes[i % kernels::kLanes] += weights[i];
      float sum = 0.0F;
      rows_.reduce(lanes, 1, &sum);
      constexpr float kEpsilon = 1e-20F;
      for (std::int64_t i = 0; i < k; ++i) weights[i] /= sum + kEpsilon;
    }
    for (std::int64_t i = 0; i < k; ++i) {
      weights[i] *= rules_.scale;
      if (rules_.round_to_bf16) {
        weights[i] = formats::decode_bf16(formats::encode_bf16(weights[i]));
      }
    }
  }

 private:
  /// Puts expert i into the list of the best `count`, best first; returns the new count.
  std::int64_t insert(const Scratch& s, std::int64_t i, std::int64_t count,
                      std::int32_t* ids) const {
    const float own = s.ranked[static_cast<std::size_t>(i)];
    std::int64_t at = count;
    while (at > 0 &&
           goes_before(own, i, s.ranked[static_cast<std::size_t>(ids[at - 1])], ids[at - 1])) {
      if (at < rules_.top_k) ids[at] = ids[at - 1];
      --at;
    }
    if (at < rules_.top_k) ids[at] = static_cast<std::int32_t>(i);
    return std::min(count + 1, rules_.top_k);
  }

  /// Marks the top_groups groups with the largest sums of their best two.
  void choose_groups(Scratch& s) const {
    const bool all = rules_.top_groups == rules_.groups;
    std::fill(s.allowed.begin(), s.allowed.end(), static_cast<std::uint8_t>(all ? 1 : 0));
    if (all) return;
    const std::int64_t size = num_experts_ / rules_.groups;
    const auto group_score = [&](std::int64_t g) {
      const float* at = s.ranked.data() + g * size;
      std::int64_t best = 0;
      for (std::int64_t i = 1; i < size; ++i) {
        if (goes_before(at[i], i, at[best], best)) best = i;
      }
      if (size == 1) return at[best];
      std::int64_t second = best == 0 ? 1 : 0;
      for (std::int64_t i = 0; i < size; ++i) {
        if (i != best && goes_before(at[i], i, at[second], second)) second = i;
      }
      return at[best] + at[second];
    };
    for (std::int64_t pick = 0; pick < rules_.top_groups; ++pick) {
      std::int64_t best = -1;
      float best_score = 0.0F;
      for (std::int64_t g = 0; g < rules_.groups; ++g) {
        if (s.allowed[static_cast<std::size_t>(g)] != 0) continue;
        const float own = group_score(g);
        if (best < 0 || goes_before(own, g, best_score, best)) {
          best = g;
          best_score = own;
        }
      }
      s.allowed[static_cast<std::size_t>(best)] = 1;
    }
  }

  const kernels::RowKernels& rows_;
  std::int64_t num_experts_;
  const RoutingRules& rules_;
  const float* bias_;
};

void check(const ops::Arguments& arguments, const float* logits, std::int64_t tokens,
           std::int64_t num_experts, const RoutingRules& rules, const std::int32_t* ids,
           const float* weights) {
  if (tokens < 0) arguments.refuse("tokens", fmt::format("is {}", tokens));
  if (num_experts < 1) arguments.refuse("num_experts", fmt::format("is {}", num_experts));
  if (rules.groups < 1 || num_experts % rules.groups != 0) {
    arguments.refuse("groups", fmt::format("is {}, which does not divide {} experts", rules.groups,
                                           num_experts));
  }
  if (rules.top_groups < 1 || rules.top_groups > rules.groups) {
    arguments.refuse("top_groups",
                     fmt::format("is {}, expected 1 to {}", rules.top_groups, rules.groups));
  }
  const std::int64_t choice = num_experts / rules.groups * rules.top_groups;
  if (rules.top_k < 1 || rules.top_k > choice) {
    arguments.refuse("top_k", fmt::format("is {}, expected 1 to {}", rules.top_k, choice));
  }
  if (tokens == 0) return;
  if (logits == nullptr) arguments.refuse("logits", "is null");
  if (ids == nullptr) arguments.refuse("ids", "is null");
  if (weights == nullptr) arguments.refuse("weights", "is null");
}

/// Calls work(token, scratch) for every token, split over the threads.
template <class Work>
void for_tokens(const Context& context, const Router& router, std::int64_t tokens, Work work) {
  if (tokens == 0) return;
  thread_local std::vector<Scratch>
      scratch;  // of the calling thread: only the first call allocates
  const auto num_threads = static_cast<std::size_t>(context.num_threads());
  if (scratch.size() < num_threads) scratch.resize(num_threads);
  for (Scratch& s : scratch) router.reserve(s);
  std::vector<Scratch>& mine = scratch;
  context.pool().parallel([&](int thread) {
    const Share share = share_of(tokens, 1, thread, context.num_threads());
    for (std::int64_t t = share.begin; t < share.end; ++t) {
      work(t, mine[static_cast<std::size_t>(thread)]);
    }
  });
}

}  // namespace

void route(const Context& context, const float* logits, std::int64_t tokens,
           std::int64_t num_experts, const RoutingRules& rules, const float* bias,
           std::int32_t* ids, float* weights) {
  check(ops::Arguments("route"), logits, tokens, num_experts, rules, ids, weights);
  const Router router(context, num_experts, rules, bias);
  for_tokens(context, router, tokens, [&](std::int64_t t, Scratch& s) {
    router.score(logits + t * num_experts, s);
    router.rank(s, ids + t * rules.top_k);
    router.weigh(s, ids + t * rules.top_k, weights + t * rules.top_k);
  });
}

void route_hashed(const Context& context, const float* logits, std::int64_t tokens,
                  std::int64_t num_experts, const RoutingRules& rules,
                  std::span<const std::int32_t> table, std::span<const std::int32_t> token_ids,
                  std::int32_t* ids, float* weights) {
  const ops::Arguments arguments("route_hashed");
  check(arguments, logits, tokens, num_experts, rules, ids, weights);
  const auto vocabulary = static_cast<std::int64_t>(table.size()) / rules.top_k;
  if (static_cast<std::int64_t>(table.size()) % rules.top_k != 0) {
    arguments.refuse(
        "table", fmt::format("has {} ids, which are not rows of {}", table.size(), rules.top_k));
  }
  if (static_cast<std::int64_t>(token_ids.size()) != tokens) {
    arguments.refuse("token_ids", fmt::format("has {}, expected {}", token_ids.size(), tokens));
  }
  for (const std::int32_t token : token_ids) {
    if (token < 0 || token >= vocabulary) {
      arguments.refuse("token_ids", fmt::format("has {}, expected 0 to {}", token, vocabulary - 1));
    }
    for (std::int64_t i = 0; i < rules.top_k; ++i) {
      const std::int32_t id = table[static_cast<std::size_t>(token * rules.top_k + i)];
      if (id < 0 || id >= num_experts) {
        arguments.refuse(
            "table", fmt::format("names expert {} for token {}, of {}", id, token, num_experts));
      }
    }
  }
  const Router router(context, num_experts, rules, nullptr);
  for_tokens(context, router, tokens, [&](std::int64_t t, Scratch& s) {
    const std::int64_t row = std::int64_t{token_ids[static_cast<std::size_t>(t)]} * rules.top_k;
    router.score(logits + t * num_experts, s);
    std::copy_n(table.begin() + row, rules.top_k, ids + t * rules.top_k);
    router.weigh(s, ids + t * rules.top_k, weights + t * rules.top_k);
  });
}

}  // namespace deepinfer
