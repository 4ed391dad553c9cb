#include "models/row_samples.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace deepinfer::models {
namespace {

// Eight units of the split over threads (16 rows), so that several threads get work.
constexpr std::int64_t kSampleRows = 128;

/// Not std::shuffle, whose order is the library's choice.
template <class T>
void shuffle(std::vector<T>& things, std::mt19937_64& random) {
  for (std::size_t i = things.size(); i > 1; --i) std::swap(things[i - 1], things[random() % i]);
}

}  // namespace

std::vector<RowSample> row_samples(const WeightMap& map, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> order(map.weights().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  shuffle(order, random);
  std::vector<std::vector<RowSample>> of_weight;
  std::size_t rounds = 0;
  for (const std::size_t weight : order) {
    const MappedWeight& mapped = map.weights()[weight];
    if (!mapped.cannot_run.empty()) continue;
    const WeightView& view = mapped.view;
    std::vector<RowSample> samples;
    for (std::int64_t group = 0; group < mapped.groups && view.k > 0; ++group) {
      for (std::int64_t first = 0; first < view.n; first += kSampleRows) {
        samples.push_back({weight, group, first, std::min(view.n, first + kSampleRows), false});
      }
    }
    shuffle(samples, random);
    if (!samples.empty()) samples.front().is_first = true;
    rounds = std::max(rounds, samples.size());
    of_weight.push_back(std::move(samples));
  }
  std::vector<RowSample> out;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const std::vector<RowSample>& samples : of_weight) {
      if (round < samples.size()) out.push_back(samples[round]);
    }
  }
  return out;
}

}  // namespace deepinfer::models
