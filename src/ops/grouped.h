// One gemm() for many groups of rows, each with its own weight.
#pragma once

#include <span>
#include <vector>

#include "deepinfer/prepared_weight.h"
#include "ops/arguments.h"
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

/// The layouts of grouped.h for any input without a gather list. x, y and what they may not overlap
/// have been checked but for the layout, which these check.
void grouped_contiguous(const Context& context, const Arguments& arguments, const GemmInput& input,
                        const PreparedWeight& w, std::span<const std::int32_t> grouped_layout,
                        const MutableMatrixView& y);
void grouped_prefix(const Context& context, const Arguments& arguments, const GemmInput& input,
                    const PreparedWeight& w, std::span<const std::int32_t> ends,
                    const MutableMatrixView& y);
void grouped_masked(const Context& context, const Arguments& arguments, const GemmInput& input,
                    const PreparedWeight& w, std::span<const std::int32_t> masked_m,
                    const MutableMatrixView& y);

}  // namespace deepinfer::ops
