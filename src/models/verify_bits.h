// The second half of verify(): the layers of a checkpoint on every instruction set, in several
// thread counts, batches and slices, against the scalar reference, bit for bit.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "deepinfer/linear.h"
#include "deepinfer/verify.h"

namespace deepinfer::models {

/// linear(), or what a test puts in its place to see that a wrong result is found.
using LinearFunction = std::function<void(const Context&, const MatrixView& x, const Weight& w,
                                          const MutableMatrixView& y, Activations)>;

struct BitOptions {
  std::optional<std::chrono::milliseconds> budget;  ///< nothing: all rows
  std::uint64_t seed = 1;
  int max_threads = 1;
  std::function<void(double part)> progress;
  LinearFunction linear;  ///< what is checked; the reference is always ours
};

/// Rows of `map.weights()[i]` that were compared go to rows_compared[i]. Weights that
/// cannot run, and matrices that Weight::prepare() refuses for their scales, are left out.
BitCheck verify_bits(const WeightMap& map, const BitOptions& options,
                     std::vector<std::int64_t>& rows_compared);

}  // namespace deepinfer::models
