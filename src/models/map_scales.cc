#include "models/map_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "checkpoint/message.h"

namespace deepinfer::models {
namespace {

using checkpoint::printable;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kRow = 32;
constexpr std::int64_t kHalfRow = 16;
constexpr std::int64_t kBlockBytes = 16;  // of 32 fp4 codes
constexpr std::int64_t kPacked = 4;       // e8m0 bytes in an I32
constexpr BlockShape kUsualBlocks[] = {{32, 32}, {128, 128}};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// A grid that scales may have: its block, and what the shape of the tensor would be.
struct Candidate {
  const Layout* layout;
  BlockShape block;
  std::int64_t rows;
  std::int64_t columns;       // of scales, without padding
  std::int64_t stride;        // of scales, with padding
  std::vector<Shape> shapes;  // any of these
};

std::string name_of(BlockShape block) { return fmt::format("{} x {}", block.n, block.k); }

std::optional<ScaleType> scale_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF8E8m0:
    case DType::kU8:
    case DType::kI32:
      return ScaleType::kE8m0;
    case DType::kF32:
      return ScaleType::kF32;
    case DType::kBf16:
      return ScaleType::kBf16;
    case DType::kF16:
      return ScaleType::kF16;
    default:
      return std::nullopt;
  }
}

std::vector<BlockShape> blocks_of(const Layout& layout, const Statement& said,
                                  const WeightView& view) {
  const std::int64_t all_n = std::max<std::int64_t>(view.n, 1);
  const std::int64_t all_k = std::max<std::int64_t>(view.k, 1);
  switch (layout.grid) {
    case Grid::kRow32:
      return {{1, kRow}};
    case Grid::kRow16:
      return {{1, kHalfRow}};
    case Grid::kChannel:
      return {{1, all_k}};
    case Grid::kTensor:
      return {{all_n, all_k}};
    case Grid::kBlock:
      break;
  }
  if (said.block) return {*said.block};
  return {std::begin(kUsualBlocks), std::end(kUsualBlocks)};
}

Candidate candidate(const MappedWeight& weight, const Layout& layout, BlockShape block,
                    const Tensor& scales) {
  const WeightView& view = weight.view;
  const bool packed = scales.view.dtype == DType::kI32;
  if (packed) block.n = 1;  // DeepGEMM packs after it has given each row its own scales
  const std::int64_t columns = ceil_div(view.k, block.k);
  const std::int64_t stored = packed ? ceil_div(columns, kPacked) : columns;
  Candidate out = {.layout = &layout,
                   .block = block,
                   .rows = ceil_div(view.n, block.n),
                   .columns = columns,
                   .stride = packed ? kPacked * stored : columns,
                   .shapes = {}};
  const bool is_stack =
      weight.codes->view.shape.size() > (layout.codes.shape == CodeShape::kBlocks ? 3U : 2U);
  if (layout.grid == Grid::kTensor) {
    if (weight.groups == 1 && !is_stack) out.shapes = {{1}, {}};
  } else if (is_stack) {
    out.shapes = {{weight.groups, out.rows, stored}};
  } else {
    out.shapes = {{weight.groups * out.rows, stored}};  // segments lie in one matrix
  }
  return out;
}

bool fits(const Candidate& candidate, const Tensor& scales) {
  return std::find(candidate.shapes.begin(), candidate.shapes.end(), scales.view.shape) !=
         candidate.shapes.end();
}

/// Rows after which a grid that begins anew would have the shape that was found, as a hint.
std::string segment_hint(const MappedWeight& weight, const Candidate& candidate,
                         const Tensor& scales) {
  const Shape& found = scales.view.shape;
  if (candidate.layout->grid != Grid::kBlock || weight.groups != 1 || found.size() != 2 ||
      found[1] != candidate.columns) {
    return "";
  }
  constexpr std::int64_t kMostSegments = 256;
  constexpr std::size_t kMostShown = 4;
  std::vector<std::int64_t> possible;
  for (std::int64_t count = 2; count <= kMostSegments && possible.size() < kMostShown; ++count) {
    const std::int64_t rows = weight.view.n / count;
    if (weight.view.n % count == 0 && count * ceil_div(rows, candidate.block.n) == found[0]) {
      possible.push_back(rows);
    }
  }
  if (possible.empty()) return "";
  return fmt::format(
      "; a grid that begins anew every {} rows would have that shape: say so with "
      "a segmentation if it is one",
      fmt::join(possible, " or "));
}

[[noreturn]] void refuse_grid(const MappedWeight& weight, const std::vector<Candidate>& all,
                              const std::vector<const Candidate*>& fitting, const Tensor& scales) {
  const WeightView& view = weight.view;
  const std::string name = printable(scales.name);
  if (all.size() == 1) {
    const Candidate& one = all.front();
    if (one.shapes.empty()) refuse("one scale for a whole stack is not known");
    refuse(fmt::format("{} for [{}, {}] in blocks of {}: expected {}, found {}{}", name, view.n,
                       view.k, name_of(one.block), shape_string(one.shapes.front()),
                       shape_string(scales.view.shape), segment_hint(weight, one, scales)));
  }
  std::string names;
  for (const Candidate& one : all) {
    const bool fit = std::find(fitting.begin(), fitting.end(), &one) != fitting.end();
    if (!fitting.empty() && !fit) continue;
    names += (names.empty() ? "" : ", ") + name_of(one.block);
  }
  refuse(
      fmt::format("scale {} of {} fits {} blocks of {} for [{}, {}], and config.json names no "
                  "block size",
                  name, shape_string(scales.view.shape),
                  fitting.empty() ? "none of the" : "each of the", names, view.n, view.k));
}

std::string format_name(const Layout& layout, BlockShape block, ScaleType type) {
  if (layout.grid == Grid::kChannel) return "fp8-channel";
  if (layout.grid == Grid::kTensor) return "fp8-tensor";
  if (layout.grid == Grid::kRow16) return "nvfp4";
  if (layout.element == Element::kE2m1) return "mxfp4";
  const bool mx = block == BlockShape{1, kRow} && type == ScaleType::kE8m0;
  return mx ? "mxfp8" : fmt::format("fp8-{}x{}", block.n, block.k);
}

}  // namespace

void refuse(std::string reason) { throw Refusal{std::move(reason)}; }

void attach_codes(MappedWeight& weight, const Tensor& codes, CodeShape shape,
                  std::int64_t segment_rows) {
  const Shape& sides = codes.view.shape;
  const std::size_t rank = shape == CodeShape::kBlocks ? 3 : 2;
  if (sides.size() != rank && sides.size() != rank + 1) {
    refuse(fmt::format("shape {} is not that of a matrix or of a stack of matrices",
                       shape_string(sides)));
  }
  if (shape == CodeShape::kBlocks && sides.back() != kBlockBytes) {
    refuse(fmt::format("shape {}: expected blocks of {} bytes", shape_string(sides), kBlockBytes));
  }
  const bool is_stack = sides.size() == rank + 1;
  const std::size_t first = is_stack ? 1 : 0;
  WeightView& view = weight.view;
  weight.codes = &codes;
  weight.stacked = is_stack || segment_rows > 0;
  weight.groups = is_stack ? sides[0] : 1;
  view.codes = codes.view.data;
  view.n = sides[first];
  view.k = sides[first + 1];
  if (shape == CodeShape::kBlocks) view.k *= kRow;
  if (shape == CodeShape::kPairs && codes.view.dtype != DType::kF4) view.k *= 2;
  if (segment_rows > 0) {
    if (is_stack || view.n % segment_rows != 0) {
      refuse(fmt::format("shape {} is not made of segments of {} rows", shape_string(sides),
                         segment_rows));
    }
    weight.groups = view.n / segment_rows;
    view.n = segment_rows;
  }
  weight.group_code_bytes = view.n * code_row_bytes(view.element, view.k);
}

const Layout& attach_scales(MappedWeight& weight, std::span<const Layout* const> layouts,
                            const Statement& said, const Tensor& scales) {
  std::vector<Candidate> all;
  for (const Layout* layout : layouts) {
    for (BlockShape block : blocks_of(*layout, said, weight.view)) {
      all.push_back(candidate(weight, *layout, block, scales));
    }
  }
  std::vector<const Candidate*> fitting;
  for (const Candidate& one : all) {
    if (fits(one, scales)) fitting.push_back(&one);
  }
  if (fitting.size() != 1) refuse_grid(weight, all, fitting, scales);
  const Candidate& grid = *fitting.front();
  const Layout& layout = *grid.layout;
  WeightView& view = weight.view;
  if (layout.cannot_run.empty() && grid.block.k % kRow != 0 && grid.block.k < view.k) {
    refuse(fmt::format("blocks of {} are not supported: their columns must be a multiple of {}",
                       name_of(grid.block), kRow));
  }
  const auto type = scale_type_of(scales.view.dtype);
  view.scale_type = type.value_or(ScaleType::kNone);
  view.scales = scales.view.data;
  view.scale_rows = grid.rows;
  view.scale_columns = grid.columns;
  view.scale_stride = grid.stride;
  view.block_n = grid.block.n;
  view.block_k = grid.block.k;
  weight.scales = &scales;
  weight.group_scale_bytes =
      weight.groups == 0 ? 0 : static_cast<std::int64_t>(scales.view.size_bytes) / weight.groups;
  weight.format = format_name(layout, grid.block, view.scale_type);
  weight.producer = layout.producers;
  weight.cannot_run = layout.cannot_run;
  return layout;
}

}  // namespace deepinfer::models
