// DeepGEMM's operands -> views that gemm() takes.
#include "deepinfer/deep_gemm.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "deepinfer/prepared_weight.h"
#include "deepinfer/quantized.h"
#include "ops/arguments.h"
#include "ops/grouped.h"

namespace deepinfer::deep_gemm {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool known(const Recipe& r) {
  return (r.gran_mn == 1 || r.gran_mn == r.gran_k) && (r.gran_k == 32 || r.gran_k == 128);
}

/// Element [row, column] of one group's scale factors, as 4 bytes.
std::uint32_t element_at(const ScaleFactors& sf, std::int64_t group, std::int64_t row,
                         std::int64_t column) {
  const std::int64_t at = group * sf.group_stride + row * sf.row_stride + column * sf.column_stride;
  std::uint32_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(sf.data) + at * 4, sizeof(bits));
  return bits;
}

/// Scale factors in row-major order: f32, or e8m0 bytes where they were packed.
struct Scales {
  std::vector<std::uint8_t> bytes;
  std::int64_t rows = 0;  // of one group
  std::int64_t columns = 0;
  ScaleType type = ScaleType::kF32;

  const std::uint8_t* group(std::int64_t g) const {
    return bytes.data() + g * rows * columns * scale_bytes(type);
  }
};

Scales gather(const ops::Arguments& arguments, const char* name, const Operand& o,
              const Recipe& recipe) {
  const std::string sf = std::string(name) + "'s scale factors";
  if (o.sf.dtype != DType::kF32 && o.sf.dtype != DType::kI32) {
    arguments.refuse(sf, fmt::format("are {}, expected F32 or I32", dtype_name(o.sf.dtype)));
  }
  if (!known(recipe)) {
    arguments.refuse(sf,
                     fmt::format("have recipe ({}, {}), expected (1, 32), (32, 32), (1, 128) or "
                                 "(128, 128)",
                                 recipe.gran_mn, recipe.gran_k));
  }
  const bool packed = o.sf.dtype == DType::kI32;
  if (packed && recipe.gran_mn != 1) {
    arguments.refuse(sf, fmt::format("are I32 with gran_mn {}, expected 1", recipe.gran_mn));
  }
  if (o.sf.row_stride < 0 || o.sf.column_stride < 0 || o.sf.group_stride < 0) {
    arguments.refuse(sf, "have a negative stride");
  }
  Scales out;
  out.type = packed ? ScaleType::kE8m0 : ScaleType::kF32;
  out.rows = ceil_div(o.rows, recipe.gran_mn);
  out.columns = ceil_div(o.k, recipe.gran_k);
  const std::int64_t groups = o.groups.value_or(1);
  if (groups * out.rows * out.columns == 0) return out;
  if (o.sf.data == nullptr) arguments.refuse(sf, "are null");
  out.bytes.resize(
      static_cast<std::size_t>(groups * out.rows * out.columns * scale_bytes(out.type)));
  std::uint8_t* at = out.bytes.data();
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t r = 0; r < out.rows; ++r) {
      for (std::int64_t c = 0; c < out.columns; ++c) {
        if (packed) {
          *at++ = static_cast<std::uint8_t>(element_at(o.sf, g, r, c / 4) >> (8 * (c % 4)));
        } else {
          const std::uint32_t bits = element_at(o.sf, g, r, c);
          std::memcpy(at, &bits, sizeof(bits));
          at += sizeof(bits);
        }
      }
    }
  }
  return out;
}

void check_operand(const ops::Arguments& arguments, const char* name, const Operand& o, bool fp4) {
  if (o.dtype != DType::kF8E4m3 && !(fp4 && o.dtype == DType::kI8)) {
    arguments.refuse(name, fmt::format("is {}, expected F8_E4M3{}", dtype_name(o.dtype),
                                       fp4 ? " or I8 (pairs of e2m1)" : ""));
  }
  if (o.rows < 0 || o.k < 0 || o.groups.value_or(1) < 0) {
    arguments.refuse(name, fmt::format("is [{}, {}, {}]", o.groups.value_or(1), o.rows, o.k));
  }
}

/// A, B and what their views point to.
class Call {
 public:
  Call(const Context& context, const char* name, const Operand& a, const Operand& b,
       const MutableMatrixView& d, const GemmOptions& options, bool fp4)
      : context_(context), arguments_(name), d_(d) {
    check_operand(arguments_, "a", a, false);
    check_operand(arguments_, "b", b, fp4);
    if (a.k != b.k) arguments_.refuse("b", fmt::format("has k = {}, expected {}", b.k, a.k));
    const Recipe recipe_a = options.recipe_a.value_or(Recipe{1, 128});
    if (recipe_a.gran_mn != 1) {
      arguments_.refuse("a's scale factors",
                        fmt::format("have gran_mn {}, expected 1", recipe_a.gran_mn));
    }
    set_a(a, recipe_a);
    const bool packed = b.sf.dtype == DType::kI32;
    set_b(b, options.recipe_b.value_or(Recipe{packed ? 1 : 128, 128}));
    check(b, options);
  }

  void plain(const GemmOptions& options) {
    if (codes_.rows == 0 || weights_->n() == 0) return;
    const ops::GemmTask task = {
        .w = &weights_->at(std::nullopt), .y = d_, .c = options.c.value_or(MatrixView{})};
    ops::gemm(context_, ops::thread_workspace(), input(), std::span(&task, 1));
  }

  const PreparedWeight& weights() const { return *weights_; }
  ops::GemmInput input() const { return {.codes = &codes_}; }

 private:
  void set_a(const Operand& a, const Recipe& recipe) {
    scales_a_ = gather(arguments_, "a", a, recipe);
    codes_.codes = a.data;
    codes_.rows = a.rows * a.groups.value_or(1);
    codes_.columns = a.k;
    codes_.stride = a.row_stride;
    codes_.scale_type = scales_a_.type;
    codes_.scales = scales_a_.bytes.data();
    codes_.scale_rows = codes_.rows;
    codes_.scale_columns = scales_a_.columns;
    codes_.block_k = recipe.gran_k;
  }

  void set_b(const Operand& b, const Recipe& recipe) {
    scales_b_ = gather(arguments_, "b", b, recipe);
    const bool fp4 = b.dtype == DType::kI8;
    WeightView view;
    view.element = fp4 ? Element::kE2m1 : Element::kE4m3fn;
    view.n = b.rows;
    view.k = b.k;
    view.row_bytes = b.row_stride;
    view.scale_type = scales_b_.type;
    view.scale_rows = scales_b_.rows;
    view.scale_columns = scales_b_.columns;
    view.block_n = recipe.gran_mn;
    view.block_k = recipe.gran_k;
    const std::int64_t row_bytes =
        b.row_stride != 0 ? b.row_stride : code_row_bytes(view.element, b.k);
    std::vector<Weight> groups;
    for (std::int64_t g = 0; g < b.groups.value_or(1); ++g) {
      if (b.data != nullptr) {
        view.codes = static_cast<const std::byte*>(b.data) + g * b.rows * row_bytes;
      }
      view.scales = scales_b_.group(g);
      groups.push_back(Weight::prepare(view, "b"));
    }
    weights_ = b.groups ? PreparedWeight::stack(std::move(groups))
                        : PreparedWeight::single(std::move(groups.front()));
  }

  void check(const Operand& b, const GemmOptions& options) const {
    const ops::Extent in = arguments_.input("a", codes_, codes_.columns, b.rows);
    const ops::Extent out = arguments_.output("d", d_, codes_.rows, b.rows);
    arguments_.disjoint("a", in, "d", out);
    for (std::int64_t g = 0; g < weights_->groups(); ++g) {
      arguments_.disjoint(
          weights_->at(b.groups ? std::optional<std::int64_t>(g) : std::nullopt).view(), "d", out);
    }
    if (!options.c) return;
    const MatrixView& c = *options.c;
    if (c.type != d_.type) arguments_.refuse("c", "is of another type than d");
    if (c.rows != d_.rows) {
      arguments_.refuse("c", fmt::format("has {} rows, expected {}", c.rows, d_.rows));
    }
    const ops::Extent added = arguments_.input("c", c, b.rows, b.rows);
    const bool is_d = c.data == d_.data && (c.rows <= 1 || c.stride == d_.stride);
    if (!is_d) arguments_.disjoint("c", added, "d", out);
  }

  const Context& context_;
  ops::Arguments arguments_;
  MutableMatrixView d_;
  Scales scales_a_;
  Scales scales_b_;
  QuantizedView codes_;
  std::optional<PreparedWeight> weights_;
};

void refuse_c(const ops::Arguments& arguments, const GemmOptions& options) {
  if (options.c) arguments.refuse("c", "is given, but grouped calls add nothing");
}

void require_groups(const ops::Arguments& arguments, const char* name, const Operand& o,
                    bool want) {
  if (o.groups.has_value() != want) {
    arguments.refuse(name, want ? "has no groups" : "has groups, expected a plain matrix");
  }
}

void gemm_nt(const char* name, const Context& context, const Operand& a, const Operand& b,
             const MutableMatrixView& d, const GemmOptions& options, bool fp4) {
  const ops::Arguments arguments(name);
  require_groups(arguments, "a", a, false);
  require_groups(arguments, "b", b, false);
  Call(context, name, a, b, d, options, fp4).plain(options);
}

}  // namespace

void fp8_gemm_nt(const Context& context, const Operand& a, const Operand& b,
                 const MutableMatrixView& d, const GemmOptions& options) {
  gemm_nt("fp8_gemm_nt", context, a, b, d, options, false);
}

void fp8_fp4_gemm_nt(const Context& context, const Operand& a, const Operand& b,
                     const MutableMatrixView& d, const GemmOptions& options) {
  gemm_nt("fp8_fp4_gemm_nt", context, a, b, d, options, true);
}

void m_grouped_fp8_fp4_gemm_nt_contiguous(const Context& context, const Operand& a,
                                          const Operand& b, const MutableMatrixView& d,
                                          std::span<const std::int32_t> grouped_layout,
                                          const GemmOptions& options, bool use_psum_layout) {
  const char* name = "m_grouped_fp8_fp4_gemm_nt_contiguous";
  const ops::Arguments arguments(name);
  require_groups(arguments, "a", a, false);
  require_groups(arguments, "b", b, true);
  refuse_c(arguments, options);
  const Call call(context, name, a, b, d, options, true);
  if (use_psum_layout) {
    ops::grouped_prefix(context, arguments, call.input(), call.weights(), grouped_layout, d);
  } else {
    ops::grouped_contiguous(context, arguments, call.input(), call.weights(), grouped_layout, d);
  }
}

void m_grouped_fp8_fp4_gemm_nt_masked(const Context& context, const Operand& a, const Operand& b,
                                      const MutableMatrixView& d,
                                      std::span<const std::int32_t> masked_m,
                                      const GemmOptions& options) {
  const char* name = "m_grouped_fp8_fp4_gemm_nt_masked";
  const ops::Arguments arguments(name);
  require_groups(arguments, "a", a, true);
  require_groups(arguments, "b", b, true);
  refuse_c(arguments, options);
  const Call call(context, name, a, b, d, options, true);
  ops::grouped_masked(context, arguments, call.input(), call.weights(), masked_m, d);
}

}  // namespace deepinfer::deep_gemm
