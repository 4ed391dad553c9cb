// One gemm() for many groups of rows, each with its own weight.
#pragma once

#include <span>
#include <vector>

#include "deepinfer/prepared_weight.h"
#include "ops/gemm.h"

namespace deepinfer::ops {

/// Tasks of a grouped call, reused from call to call.
struct GroupedWorkspace {
  GemmWorkspace gemm;
  std::vector<GemmTask> tasks;
  std::vector<std::int32_t> gather;
};

/// `rows` rows of y from `first`.
MutableMatrixView rows_of(const MutableMatrixView& y, std::int64_t first, std::int64_t rows);

/// Writes zeros to all of y.
void zero(const MutableMatrixView& y);

}  // namespace deepinfer::ops
