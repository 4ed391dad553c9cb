// Choosing the next token. exp is our own and random numbers are splitmix64, so that a seed gives
// the same text on every machine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "deepinfer/error.h"
#include "deepinfer/text.h"
#include "kernels/math.h"
#include "runtime/fp_state.h"

namespace deepinfer {
namespace {

/// Uniform in [0, 1): 53 bits of splitmix64.
double next_uniform(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

std::int32_t lowest_largest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {
  const auto refuse = [](const char* name, double value, const char* expected) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: expected {}, found {}", name, expected, value));
  };
  if (!(options.temperature >= 0.0F) || std::isinf(options.temperature)) {
    refuse("temperature", static_cast<double>(options.temperature), "a finite number from 0");
  }
  if (options.top_k < 0) refuse("top-k", options.top_k, "0 (no limit) or more");
  if (!(options.top_p > 0.0F && options.top_p <= 1.0F)) {
    refuse("top-p", static_cast<double>(options.top_p), "a number above 0 and up to 1");
  }
}

std::int32_t Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorCode::kInvalidArgument, "sample: no logits");
  std::int32_t token = 0;
  in_ieee_state([&] { token = choose(logits); });
  return token;
}

std::int32_t Sampler::choose(std::span<const float> logits) {
  if (options_.temperature == 0.0F || options_.top_k == 1) return lowest_largest(logits);

  // Candidates, best first; equal logits in ascending id.
  order_.resize(logits.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::size_t kept = order_.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options_.top_k));
  std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept),
                    order_.end(), better);

  const float largest = logits[static_cast<std::size_t>(order_[0])];
  weights_.resize(kept);
  double total = 0.0;
  for (std::size_t i = 0; i < kept; ++i) {
    const float logit = logits[static_cast<std::size_t>(order_[i])];
    weights_[i] = kernels::exp32((logit - largest) / options_.temperature);
    total += static_cast<double>(weights_[i]);
  }
  // The smallest set of candidates whose share reaches top_p; at least one.
  if (options_.top_p < 1.0F) {
    const double wanted = total * static_cast<double>(options_.top_p);
    double sum = 0.0;
    std::size_t i = 0;
    while (i < kept && sum < wanted) sum += static_cast<double>(weights_[i++]);
    kept = std::max<std::size_t>(i, 1);
    total = sum;
  }
  const double mark = next_uniform(state_) * total;
  double sum = 0.0;
  for (std::size_t i = 0; i < kept; ++i) {
    sum += static_cast<double>(weights_[i]);
    if (mark < sum) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace deepinfer
