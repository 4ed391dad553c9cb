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

}  // namespace

void grouped_contiguous(const Context& context, const Arguments& arguments, const GemmInput& input,
                        const PreparedWeight& w, std::span<const std::int32_t> grouped_layout,
                        const MutableMatrixView& y) {
  const auto m = static_cast<std::int64_t>(grouped_layout.size());
  if (m != input.rows()) {
    arguments.refuse("grouped_layout", fmt::format("has {} rows, expected {}", m, input.rows()));
  }
  const auto group_of = [&](std::int64_t r) { return grouped_layout[static_cast<std::size_t>(r)]; };
  for (std::int64_t r = 0; r < m; ++r) {
    if (group_of(r) < -1 || group_of(r) >= w.groups()) {
      arguments.refuse("grouped_layout", fmt::format("names group {} in row {}, of {} groups",
                                                     group_of(r), r, w.groups()));
    }
  }
  if (input.rows() == 0 || w.n() == 0) return;
  GroupedWorkspace& workspace = grouped_workspace();
  workspace.tasks.clear();
  for (std::int64_t begin = 0; begin < m;) {
    std::int64_t end = begin + 1;
    while (end < m && group_of(end) == group_of(begin)) ++end;
    const MutableMatrixView part = rows_of(y, begin, end - begin);
    if (group_of(begin) < 0) {
      zero(part);
    } else {
      workspace.tasks.push_back({.w = &w.at(group_of(begin)), .y = part, .first_row = begin});
    }
    begin = end;
  }
  gemm(context, workspace.gemm, input, workspace.tasks);
}

void grouped_prefix(const Context& context, const Arguments& arguments, const GemmInput& input,
                    const PreparedWeight& w, std::span<const std::int32_t> ends,
                    const MutableMatrixView& y) {
  if (static_cast<std::int64_t>(ends.size()) != w.groups()) {
    arguments.refuse("ends", fmt::format("has {} groups, expected {}", ends.size(), w.groups()));
  }
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    if (ends[g] < begin || ends[g] > input.rows()) {
      arguments.refuse("ends", fmt::format("says that group {} ends at row {}, expected {} to {}",
                                           g, ends[g], begin, input.rows()));
    }
    begin = ends[g];
  }
  if (input.rows() == 0 || w.n() == 0) return;
  GroupedWorkspace& workspace = grouped_workspace();
  workspace.tasks.clear();
  begin = 0;
  for (std::size_t g = 0; g < ends.size(); ++g) {
    if (ends[g] == begin) continue;
    workspace.tasks.push_back({.w = &w.at(static_cast<std::int64_t>(g)),
                               .y = rows_of(y, begin, ends[g] - begin),
                               .first_row = begin});
    begin = ends[g];
  }
  zero(rows_of(y, begin, input.rows() - begin));
  gemm(context, workspace.gemm, input, workspace.tasks);
}

void grouped_masked(const Context& context, const Arguments& arguments, const GemmInput& input,
                    const PreparedWeight& w, std::span<const std::int32_t> masked_m,
                    const MutableMatrixView& y) {
  const auto groups = static_cast<std::int64_t>(masked_m.size());
  if (groups != w.groups()) {
    arguments.refuse("masked_m", fmt::format("has {} groups, expected {}", groups, w.groups()));
  }
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (input.rows() > kMostRows) arguments.refuse("x", "has more rows than a 32-bit index can name");
  if (groups == 0 ? input.rows() != 0 : input.rows() % groups != 0) {
    arguments.refuse("x", fmt::format("has {} rows, which are not {} groups of equal size",
                                      input.rows(), groups));
  }
  if (groups == 0) return;
  const std::int64_t max_m = input.rows() / groups;
  for (std::size_t g = 0; g < masked_m.size(); ++g) {
    if (masked_m[g] < 0 || masked_m[g] > max_m) {
      arguments.refuse("masked_m", fmt::format("says {} rows for group {}, expected 0 to {}",
                                               masked_m[g], g, max_m));
    }
  }
  if (input.rows() == 0 || w.n() == 0) return;
  GroupedWorkspace& workspace = grouped_workspace();
  workspace.tasks.clear();
  workspace.gather.clear();
  for (std::size_t g = 0; g < masked_m.size(); ++g) {
    const std::int64_t first = static_cast<std::int64_t>(g) * max_m;
    if (masked_m[g] == 0) continue;
    workspace.tasks.push_back({.w = &w.at(static_cast<std::int64_t>(g)),
                               .y = rows_of(y, first, masked_m[g]),
                               .first_row = static_cast<std::int64_t>(workspace.gather.size())});
    for (std::int64_t i = 0; i < masked_m[g]; ++i) {
      workspace.gather.push_back(static_cast<std::int32_t>(first + i));
    }
  }
  if (workspace.gather.empty()) return;
  GemmInput gathered = input;
  gathered.gather = workspace.gather;
  gemm(context, workspace.gemm, gathered, workspace.tasks);
}

}  // namespace ops

namespace {

/// Checks what all layouts share.
void check(const ops::Arguments& arguments, const MatrixView& x, const PreparedWeight& w,
           const MutableMatrixView& y) {
  if (!w.stacked()) arguments.refuse("w", "is not stacked");
  const ops::Extent in = arguments.input("x", x, w.k(), w.n());
  const ops::Extent out = arguments.output("y", y, x.rows, w.n());
  if (x.rows == 0 || w.n() == 0) return;
  arguments.disjoint("x", in, "y", out);
  for (std::int64_t g = 0; g < w.groups(); ++g) arguments.disjoint(w.at(g).view(), "y", out);
}

}  // namespace

void grouped_linear_contiguous(const Context& context, const MatrixView& x, const PreparedWeight& w,
                               std::span<const std::int32_t> grouped_layout,
                               const MutableMatrixView& y, Activations activations) {
  const ops::Arguments arguments("grouped_linear_contiguous");
  check(arguments, x, w, y);
  ops::grouped_contiguous(context, arguments, {.x = x, .activations = activations}, w,
                          grouped_layout, y);
}

void grouped_linear_prefix(const Context& context, const MatrixView& x, const PreparedWeight& w,
                           std::span<const std::int32_t> ends, const MutableMatrixView& y,
                           Activations activations) {
  const ops::Arguments arguments("grouped_linear_prefix");
  check(arguments, x, w, y);
  ops::grouped_prefix(context, arguments, {.x = x, .activations = activations}, w, ends, y);
}

void grouped_linear_masked(const Context& context, const MatrixView& x, const PreparedWeight& w,
                           std::span<const std::int32_t> masked_m, const MutableMatrixView& y,
                           Activations activations) {
  const ops::Arguments arguments("grouped_linear_masked");
  check(arguments, x, w, y);
  ops::grouped_masked(context, arguments, {.x = x, .activations = activations}, w, masked_m, y);
}

}  // namespace deepinfer
