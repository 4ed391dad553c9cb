// Packed scales -> kernel scales: e8m0 bytes per row, of which e4m3fn kernels take one row in 32.
#include "deepinfer/prepared_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "deepinfer/error.h"

namespace deepinfer {
namespace {

constexpr std::int64_t kBlock = 32;  // rows and columns that share a scale

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

std::int64_t byte_columns(const PackedScales& scales) {
  return scales.dtype == DType::kI16 ? 2 * scales.columns : scales.columns;
}

/// Scale bytes of row `row` of group `group`.
const std::uint8_t* scale_row(const PackedWeightView& v, std::int64_t group, std::int64_t row) {
  return static_cast<const std::uint8_t*>(v.scales.data) +
         (group * v.n + row) * byte_columns(v.scales);
}

std::string misfit_of_shapes(const PackedWeightView& v) {
  if (v.element == Element::kBf16) return "bf16 weights have no scales";
  if (v.n < 0 || v.k < 0 || v.groups.value_or(1) < 0) {
    return fmt::format("shape [{}, {}, {}] is negative", v.groups.value_or(1), v.n, v.k);
  }
  if (v.element == Element::kE2m1 && v.k % 2 != 0) {
    return fmt::format("e2m1 holds two codes in a byte, so k must be even, found k = {}", v.k);
  }
  const DType dtype = v.scales.dtype;
  if (dtype != DType::kI16 && dtype != DType::kU8 && dtype != DType::kF8E8m0) {
    return fmt::format("scales are {}, expected I16, U8 or F8_E8M0", dtype_name(dtype));
  }
  const std::int64_t columns = ceil_div(v.k, kBlock);
  if (v.scales.rows != v.n || byte_columns(v.scales) < columns) {
    return fmt::format(
        "scales are [{}, {}] bytes, expected [{}, {}]: one for each row and {} columns",
        v.scales.rows, byte_columns(v.scales), v.n, columns, kBlock);
  }
  const bool empty = v.groups.value_or(1) == 0 || v.n == 0 || v.k == 0;
  if (!empty && v.codes == nullptr) return "codes are null";
  if (!empty && v.scales.data == nullptr) return "scales are null";
  return {};
}

/// Why the scales do not fit; empty when they do.
std::string misfit(const PackedWeightView& v) {
  std::string reason = misfit_of_shapes(v);
  if (!reason.empty() || v.element == Element::kE2m1) return reason;
  if (v.k == 0) return {};  // scales may be null
  const auto columns = static_cast<std::size_t>(ceil_div(v.k, kBlock));
  for (std::int64_t group = 0; group < v.groups.value_or(1); ++group) {
    for (std::int64_t row = 0; row < v.n; ++row) {
      const std::int64_t first = row / kBlock * kBlock;
      if (std::memcmp(scale_row(v, group, row), scale_row(v, group, first), columns) != 0) {
        return fmt::format("rows {} and {}{} have different scales, but share a block of {} rows",
                           first, row, v.groups ? fmt::format(" of group {}", group) : "", kBlock);
      }
    }
  }
  return {};
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

}  // namespace

std::optional<KernelScale> kernel_scale(const PackedWeightView& view) {
  if (!misfit(view).empty()) return std::nullopt;
  const std::int64_t step = view.element == Element::kE4m3fn ? kBlock : 1;
  KernelScale out;
  out.rows = ceil_div(view.n, step);
  out.columns = ceil_div(view.k, kBlock);
  const std::int64_t groups = view.groups.value_or(1);
  if (out.rows * out.columns == 0) return out;
  out.bytes.reserve(static_cast<std::size_t>(groups * out.rows * out.columns));
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t row = 0; row < view.n; row += step) {
      const std::uint8_t* bytes = scale_row(view, group, row);
      out.bytes.insert(out.bytes.end(), bytes, bytes + out.columns);
    }
  }
  return out;
}

PreparedWeight PreparedWeight::prepare(const PackedWeightView& view, std::string_view name) {
  if (const std::string reason = misfit(view); !reason.empty()) {
    refuse(fmt::format("weight '{}': {}", name, reason));
  }
  PreparedWeight out;
  out.stacked_ = view.groups.has_value();
  out.n_ = view.n;
  out.k_ = view.k;
  out.element_ = view.element;
  const bool fp8 = view.element == Element::kE4m3fn;
  WeightView one;
  one.element = view.element;
  one.n = view.n;
  one.k = view.k;
  one.scale_type = ScaleType::kE8m0;
  one.block_n = fp8 ? kBlock : 1;
  one.scale_rows = ceil_div(view.n, one.block_n);
  one.scale_columns = ceil_div(view.k, kBlock);
  if (fp8) out.kernel_scales_ = kernel_scale(view)->bytes;
  const std::int64_t group_codes = view.n * code_row_bytes(view.element, view.k);
  for (std::int64_t group = 0; group < view.groups.value_or(1); ++group) {
    if (view.codes != nullptr) {
      one.codes = static_cast<const std::uint8_t*>(view.codes) + group * group_codes;
    }
    if (fp8) {
      one.scales = out.kernel_scales_.data() + group * one.scale_rows * one.scale_columns;
    } else if (view.scales.data != nullptr) {
      one.scales = scale_row(view, group, 0);
      one.scale_stride = byte_columns(view.scales);
    }
    out.weights_.push_back(Weight::prepare(one, name));
  }
  return out;
}

PreparedWeight PreparedWeight::single(Weight weight) {
  PreparedWeight out;
  out.n_ = weight.n();
  out.k_ = weight.k();
  out.element_ = weight.view().element;
  out.weights_.push_back(std::move(weight));
  return out;
}

PreparedWeight PreparedWeight::stack(std::vector<Weight> groups) {
  PreparedWeight out;
  out.stacked_ = true;
  out.weights_ = std::move(groups);
  if (out.weights_.empty()) return out;
  const WeightView& first = out.weights_.front().view();
  out.n_ = first.n;
  out.k_ = first.k;
  out.element_ = first.element;
  for (std::size_t i = 1; i < out.weights_.size(); ++i) {
    const WeightView& v = out.weights_[i].view();
    if (v.n != first.n || v.k != first.k || v.element != first.element ||
        v.scale_type != first.scale_type || v.block_n != first.block_n ||
        v.block_k != first.block_k) {
      refuse(fmt::format("stack: group {} is [{}, {}], expected [{}, {}] of the same format", i,
                         v.n, v.k, first.n, first.k));
    }
  }
  return out;
}

const Weight& PreparedWeight::at(std::optional<std::int64_t> group) const {
  if (!stacked_) {
    if (group) refuse(fmt::format("group {} was asked for, but the weight is not stacked", *group));
    return weights_.front();
  }
  if (!group) refuse(fmt::format("a stacked weight of {} groups needs a group", groups()));
  if (*group < 0 || *group >= groups()) {
    refuse(fmt::format("group {} is out of range: the weight has {}", *group, groups()));
  }
  return weights_[static_cast<std::size_t>(*group)];
}

const PreparedWeight* PreparedModel::find(std::string_view name) const noexcept {
  const auto at = std::lower_bound(weights.begin(), weights.end(), name,
                                   [](const NamedPreparedWeight& weight, std::string_view wanted) {
                                     return weight.name < wanted;
                                   });
  return at != weights.end() && at->name == name ? &at->weight : nullptr;
}

}  // namespace deepinfer
