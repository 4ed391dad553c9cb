// Grouped GEMM: rows of x against the groups (experts) of a stacked weight, in DeepGEMM's two
// layouts.
//
// Each row gets the bits of a call of its own on the group's 2-D weight. A stacked weight may be
// one tensor [e, n, k] or separate ones (PreparedWeight::stack). All arguments are checked by name
// before anything is written: Error(kInvalidArgument). No group may have more than 2^31 - 1 rows.
#pragma once

#include <cstdint>
#include <span>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/prepared_weight.h"

namespace deepinfer {

/// m-grouped contiguous: y[r] = x[r] . w[grouped_layout[r]]^T for the rows of x [m, k], y [m, n];
/// rows with -1 are padding and become zeros. Rows of one group are best neighbours: a group's
/// weight is read once for each run of its rows.
DEEPINFER_API void grouped_linear_contiguous(const Context& context, const MatrixView& x,
                                             const PreparedWeight& w,
                                             std::span<const std::int32_t> grouped_layout,  // [m]
                                             const MutableMatrixView& y,
                                             Activations activations = Activations::kQuantize224);

/// The same with the end of each group: group g has the rows from ends[g - 1] (0 for the first) to
/// ends[g]; rows past the last end become zeros.
DEEPINFER_API void grouped_linear_prefix(const Context& context, const MatrixView& x,
                                         const PreparedWeight& w,
                                         std::span<const std::int32_t> ends,  // [e], ascending
                                         const MutableMatrixView& y,
                                         Activations activations = Activations::kQuantize224);

/// m-grouped masked: x [e, max_m, k] and y [e, max_m, n], given as e * max_m rows; of group g the
/// first masked_m[g] rows are computed, the others neither read nor written.
DEEPINFER_API void grouped_linear_masked(const Context& context, const MatrixView& x,
                                         const PreparedWeight& w,
                                         std::span<const std::int32_t> masked_m,  // [e]
                                         const MutableMatrixView& y,
                                         Activations activations = Activations::kQuantize224);

}  // namespace deepinfer
