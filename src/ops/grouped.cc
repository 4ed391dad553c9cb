#include "ops/grouped.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "deepinfer/grouped.h"
#include "ops/arguments.h"

namespace deepinfer {
namespace ops {

MutableMatrixView rows_of(const MutableMatrixView& y, std::int64_t first, std::int64_t rows) {
  const std::int64_t stride = y.stride != 0 ? y.stride : y.columns;
  const std::int64_t element = y.type == FloatType::kBf16 ? 2 : 4;
  MutableMatrixView out = y;
  out.data = static_cast<std::byte*>(y.data) + first * stride * element;
  out.rows = rows;
  return out;
}

void zero(const MutableMatrixView& y) {
  const std::int64_t stride = y.stride != 0 ? y.stride : y.columns;
  const std::int64_t element = y.type == FloatType::kBf16 ? 2 : 4;
  for (std::int64_t r = 0; r < y.rows; ++r) {
    std::memset(static_cast<std::byte*>(y.data) + r * stride * element, 0,
                static_cast<std::size_t>(y.columns * element));
  }
}

namespace {

GroupedWorkspace& grouped_workspace() {
  thread_local GroupedWorkspace workspace;
  return workspace;
}

/// Checks what all layouts share; false when there is nothing to compute.
bool check(const Arguments& arguments, const MatrixView& x, const PreparedWeight& w,
           const MutableMatrixView& y) {
  if (!w.stacked()) arguments.refuse("w", "is not stacked");
  const Extent in = arguments.input("x", x, w.k());
  const Extent out = arguments.output("y", y, x.rows, w.n());
  if (x.rows == 0 || w.n() == 0) return false;
  arguments.disjoint("x", in, "y", out);
  for (std::int64_t g = 0; g < w.groups(); ++g) arguments.disjoint(w.at(g).view(), "y", out);
  return true;
}

}  // namespace
}  // namespace ops

void grouped_linear_contiguous(const Context& context, const MatrixView& x, const PreparedWeight& w,
                               std::span<const std::int32_t> grouped_layout,
                               const MutableMatrixView& y, Activations activations) {
  const ops::Arguments arguments("grouped_linear_contiguous");
  const bool any = ops::check(arguments, x, w, y);
  const auto m = static_cast<std::int64_t>(grouped_layout.size());
  if (m != x.rows) {
    arguments.refuse("grouped_layout", fmt::format("has {} rows, expected {}", m, x.rows));
  }
  const auto group_of = [&](std::int64_t r) { return grouped_layout[static_cast<std::size_t>(r)]; };
  for (std::int64_t r = 0; r < m; ++r) {
    if (group_of(r) < -1 || group_of(r) >= w.groups()) {
      arguments.refuse("grouped_layout", fmt::format("names group {} in row {}, of {} groups",
                                                     group_of(r), r, w.groups()));
    }
  }
  if (!any) return;
  ops::GroupedWorkspace& workspace = ops::grouped_workspace();
  workspace.tasks.clear();
  for (std::int64_t begin = 0; begin < m;) {
    std::int64_t end = begin + 1;
    while (end < m && group_of(end) == group_of(begin)) ++end;
    const MutableMatrixView part = ops::rows_of(y, begin, end - begin);
    if (group_of(begin) < 0) {
      ops::zero(part);
    } else {
      workspace.tasks.push_back({.w = &w.at(group_of(begin)), .y = part, .first_row = begin});
    }
    begin = end;
  }
  ops::gemm(context, workspace.gemm, {.x = x, .activations = activations}, workspace.tasks);
}

void grouped_linear_prefix(const Context& context, const MatrixView& x, const PreparedWeight& w,
                           std::span<const std::int32_t> ends, const MutableMatrixView& y,
                           Activations activations) {
  const ops::Arguments arguments("grouped_linear_prefix");
  const bool any = ops::check(arguments, x, w, y);
  if (static_cast<std::int64_t>(ends.size()) != w.groups()) {
    arguments.refuse("ends", fmt::format("has {} groups, expected {}", ends.size(), w.groups()));
  }
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    if (ends[g] < begin || ends[g] > x.rows) {
      arguments.refuse("ends", fmt::format("says that group {} ends at row {}, expected {} to {}",
                                           g, ends[g], begin, x.rows));
    }
    begin = ends[g];
  }
  if (!any) return;
  ops::GroupedWorkspace& workspace = ops::grouped_workspace();
  workspace.tasks.clear();
  begin = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    if (ends[g] == begin) continue;
    workspace.tasks.push_back({.w = &w.at(static_cast<std::int64_t>(g)),
                               .y = ops::rows_of(y, begin, ends[g] - begin),
                               .first_row = begin});
    begin = ends[g];
  }
  ops::zero(ops::rows_of(y, begin, x.rows - begin));
  ops::gemm(context, workspace.gemm, {.x = x, .activations = activations}, workspace.tasks);
}

void grouped_linear_masked(const Context& context, const MatrixView& x, const PreparedWeight& w,
                           std::span<const std::int32_t> masked_m, const MutableMatrixView& y,
                           Activations activations) {
  const ops::Arguments arguments("grouped_linear_masked");
  const bool any = ops::check(arguments, x, w, y);
  const auto groups = static_cast<std::int64_t>(masked_m.size());
  if (groups != w.groups()) {
    arguments.refuse("masked_m", fmt::format("has {} groups, expected {}", groups, w.groups()));
  }
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (x.rows > kMostRows) arguments.refuse("x", "has more rows than a 32-bit index can name");
  if (groups == 0 ? x.rows != 0 : x.rows % groups != 0) {
    arguments.refuse(
        "x", fmt::format("has {} rows, which are not {} groups of equal size", x.rows, groups));
  }
  if (groups == 0) return;
  const std::int64_t max_m = x.rows / groups;
  for (std::size_t g = 0; g < masked_m.size(); ++g) {
    if (masked_m[g] < 0 || masked_m[g] > max_m) {
      arguments.refuse("masked_m", fmt::format("says {} rows for group {}, expected 0 to {}",
                                               masked_m[g], g, max_m));
    }
  }
  if (!any) return;
  ops::GroupedWorkspace& workspace = ops::grouped_workspace();
  workspace.tasks.clear();
  workspace.gather.clear();
  for (std::size_t g = 0; g < masked_m.size(); ++g) {
    const std::int64_t first = static_cast<std::int64_t>(g) * max_m;
    if (masked_m[g] == 0) continue;
    workspace.tasks.push_back({.w = &w.at(static_cast<std::int64_t>(g)),
                               .y = ops::rows_of(y, first, masked_m[g]),
                               .first_row = static_cast<std::int64_t>(workspace.gather.size())});
    for (std::int64_t i = 0; i < masked_m[g]; ++i) {
      workspace.gather.push_back(static_cast<std::int32_t>(first + i));
    }
  }
  if (workspace.gather.empty()) return;
  ops::gemm(context, workspace.gemm,
            {.x = x, .activations = activations, .gather = workspace.gather}, workspace.tasks);
}

}  // namespace deepinfer
