// Which rows of which weights are compared, in which order: fixed by the seed alone, so that two
// runs differ only in how far they get.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/weight_map.h"

namespace deepinfer::models {

/// Rows [first, last) of a matrix of a weight that are compared together.
struct RowSample {
  std::size_t weight;  ///< index in the map
  std::int64_t group;  ///< of its stack
  std::int64_t first;
  std::int64_t last;
  bool is_first;  ///< the first of its weight in the order
};

/// Rows of all matrices of a weight; none where there is nothing to multiply.
inline std::int64_t num_rows(const MappedWeight& weight) noexcept {
  return weight.view.k > 0 ? weight.groups * weight.view.n : 0;
}

/// All rows of all weights that can run, of every matrix of a stack. One sample of every weight
/// comes first, then a second one of each, and so on; the weights and the samples of each are
/// shuffled.
std::vector<RowSample> row_samples(const WeightMap& map, std::uint64_t seed);

}  // namespace deepinfer::models
