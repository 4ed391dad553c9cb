#include "models/row_samples.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace deepinfer::models {
namespace {

// Eight units of the split over threads (16 rows), so that several threads get work.
constexpr std::int64_t kSampleRows = 128;

int bytes_of_scale(ScaleType type) {
  switch (type) {
    case ScaleType::kNone:
      return 0;
    case ScaleType::kE8m0:
      return 1;
    case ScaleType::kF32:
      return 4;
    case ScaleType::kBf16:
    case ScaleType::kF16:
      return 2;
  }
  return 0;
}

/// Not std::shuffle, whose order is the library's choice.
template <class T>
void shuffle(std::vector<T>& things, std::mt19937_64& random) {
  for (std::size_t i = things.size(); i > 1; --i) std::swap(things[i - 1], things[random() % i]);
}

}  // namespace

std::int64_t slice_unit(const WeightView& view) noexcept {
  const bool has_blocks = view.scale_type != ScaleType::kNone && view.block_n < view.n;
  return has_blocks ? view.block_n : 1;
}

WeightView slice_of(const WeightView& view, std::int64_t first, std::int64_t last) noexcept {
  WeightView slice = view;
  slice.row_bytes = view.row_bytes != 0 ? view.row_bytes : code_row_bytes(view.element, view.k);
  slice.codes = static_cast<const std::byte*>(view.codes) + first * slice.row_bytes;
  slice.n = last - first;
  if (view.scale_type == ScaleType::kNone) return slice;
  const std::int64_t grid_row = first / view.block_n;
  slice.scales = static_cast<const std::byte*>(view.scales) +
                 grid_row * view.scale_columns * bytes_of_scale(view.scale_type);
  slice.scale_rows = (last - 1) / view.block_n + 1 - grid_row;
  return slice;
}

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
    const std::int64_t unit = slice_unit(view);
    const std::int64_t rows = unit * std::max<std::int64_t>(2, (kSampleRows + unit - 1) / unit);
    std::vector<RowSample> samples;
    for (std::int64_t group = 0; group < mapped.groups && view.k > 0; ++group) {
      for (std::int64_t first = 0; first < view.n; first += rows) {
        samples.push_back({weight, group, first, std::min(view.n, first + rows), false});
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
