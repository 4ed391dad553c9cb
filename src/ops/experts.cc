// A layer of experts: rows sorted by expert, gate and up in one pass over x, activation, down, sum.
//
// Rows are worked on in ranges of at most kRangeRows, so that buffers do not grow with the prompt;
// a token's experts come in ascending order all the same.
#include "deepinfer/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "formats/bf16.h"
#include "kernels/registry.h"
#include "ops/arguments.h"
#include "ops/grouped.h"
#include "runtime/thread_pool.h"

namespace deepinfer {
namespace {

using Bf16 = std::uint16_t;

constexpr std::int64_t kRangeRows = 8192;  // some hundred megabytes with V4.1's widths

/// Everything a call needs, reused from call to call.
struct Workspace {
  ops::GroupedWorkspace grouped;
  std::vector<std::int32_t> slots;   // slots with an expert, by expert and then by slot
  std::vector<std::int32_t> row_of;  // slot -> its place in `slots`, -1 without an expert
  AlignedBuffer gate;                // bf16 [rows, width of gate]
  AlignedBuffer up;                  // bf16 [rows, width]
  AlignedBuffer h;                   // bf16 [rows, width]
  AlignedBuffer out;                 // bf16 [rows, hidden]
  AlignedBuffer sums;                // f32 [tokens, hidden]
};

Workspace& thread_workspace() {
  thread_local Workspace workspace;
  return workspace;
}

MutableMatrixView matrix(const AlignedBuffer& buffer, std::int64_t rows, std::int64_t columns) {
  return {buffer.as<Bf16>(), FloatType::kBf16, rows, columns, 0};
}

/// Shapes of one call; checked.
struct Sizes {
  std::int64_t tokens;
  std::int64_t top_k;
  std::int64_t hidden;
  std::int64_t width;
};

void check_weight(const ops::Arguments& arguments, const char* name, const PreparedWeight* w,
                  std::int64_t groups, std::int64_t n, std::int64_t k) {
  if (w == nullptr) arguments.refuse(name, "is null");
  if (!w->stacked()) arguments.refuse(name, "is not stacked");
  if (w->groups() != groups || w->n() != n || w->k() != k) {
    arguments.refuse(name, fmt::format("is [{}, {}, {}], expected [{}, {}, {}]", w->groups(),
                                       w->n(), w->k(), groups, n, k));
  }
}

void check_shared(const ops::Arguments& arguments, const ExpertWeights& w, std::int64_t hidden) {
  if (w.shared_gate == nullptr && w.shared_up == nullptr && w.shared_down == nullptr) return;
  if (w.shared_gate == nullptr || w.shared_up == nullptr || w.shared_down == nullptr) {
    arguments.refuse("the shared expert", "has some of its three weights, expected all or none");
  }
  const std::int64_t width = w.shared_down->k();
  const auto check = [&](const char* name, const Weight& part, std::int64_t n, std::int64_t k) {
    if (part.n() != n || part.k() != k) {
      arguments.refuse(name,
                       fmt::format("is [{}, {}], expected [{}, {}]", part.n(), part.k(), n, k));
    }
  };
  check("shared_gate", *w.shared_gate, width, hidden);
  check("shared_up", *w.shared_up, width, hidden);
  check("shared_down", *w.shared_down, hidden, width);
}

Sizes check(const MatrixView& x, std::span<const std::int32_t> ids, std::span<const float> weights,
            const ExpertWeights& w, const MutableMatrixView& y) {
  const ops::Arguments arguments("experts");
  if (w.gate == nullptr) arguments.refuse("gate", "is null");
  if (w.down == nullptr) arguments.refuse("down", "is null");
  const std::int64_t groups = w.gate->groups();
  const std::int64_t hidden = w.gate->k();
  const std::int64_t width = w.down->k();
  check_weight(arguments, "gate", w.gate, groups, w.up != nullptr ? width : 2 * width, hidden);
  if (w.up != nullptr) check_weight(arguments, "up", w.up, groups, width, hidden);
  check_weight(arguments, "down", w.down, groups, hidden, width);
  if (w.up == nullptr && w.up_bias != nullptr) {
    arguments.refuse("up_bias", "is given, but gate and up are one weight");
  }
  check_shared(arguments, w, hidden);
  const ops::Extent in = arguments.input("x", x, hidden, hidden);
  const ops::Extent out = arguments.output("y", y, x.rows, hidden);
  arguments.disjoint("x", in, "y", out);
  if (weights.size() != ids.size()) {
    arguments.refuse(
        "weights", fmt::format("has {}, expected {}, one for each id", weights.size(), ids.size()));
  }
  const auto num_slots = static_cast<std::int64_t>(ids.size());
  if (num_slots > std::numeric_limits<std::int32_t>::max() - x.rows) {
    arguments.refuse("ids", "has more than a 32-bit index can name");
  }
  if (x.rows == 0 ? num_slots != 0 : num_slots % x.rows != 0) {
    arguments.refuse("ids",
                     fmt::format("has {}, which are not rows for {} tokens", num_slots, x.rows));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < -1 || ids[i] >= groups) {
      arguments.refuse("ids", fmt::format("names expert {} in place {}, of {}", ids[i], i, groups));
    }
    if (ids[i] < 0) continue;
    arguments.disjoint(w.gate->at(ids[i]).view(), "y", out);
    if (w.up != nullptr) arguments.disjoint(w.up->at(ids[i]).view(), "y", out);
    arguments.disjoint(w.down->at(ids[i]).view(), "y", out);
  }
  return {x.rows, x.rows == 0 ? 0 : num_slots / x.rows, hidden, width};
}

class ExpertsCall {
 public:
  ExpertsCall(const Context& context, const MatrixView& x, std::span<const std::int32_t> ids,
              std::span<const float> weights, const ExpertWeights& w, const ExpertRules& rules,
              const Sizes& sizes)
      : context_(context),
        x_(x),
        ids_(ids),
        weights_(weights),
        w_(w),
        rules_(rules),
        sizes_(sizes),
        rows_(*kernels::table_of(context.isa()).rows),
        ws_(thread_workspace()) {}

  void run(const MutableMatrixView& y) {
    sort_slots();
    ws_.sums.reserve(sizes_.tokens * sizes_.hidden * 4);
    std::fill_n(ws_.sums.as<float>(), sizes_.tokens * sizes_.hidden, 0.0F);
    const auto num_rows = static_cast<std::int64_t>(ws_.slots.size());
    for (std::int64_t begin = 0; begin < num_rows; begin += kRangeRows) {
      const Share range = {begin, std::min(begin + kRangeRows, num_rows)};
      gate_and_up(range);
      activate(range.end - range.begin, sizes_.width, &range);
      down(range);
      add_rows(range);
    }
    for (std::int64_t begin = 0; w_.shared_gate != nullptr && begin < sizes_.tokens;
         begin += kRangeRows) {
      add_shared({begin, std::min(begin + kRangeRows, sizes_.tokens)});
    }
    store(y);
  }

 private:
  std::int32_t expert_of_row(std::int64_t row) const {
    return ids_[static_cast<std::size_t>(ws_.slots[static_cast<std::size_t>(row)])];
  }
  std::int64_t token_of_row(std::int64_t row) const {
    return ws_.slots[static_cast<std::size_t>(row)] / sizes_.top_k;
  }

  void sort_slots() {
    ws_.slots.clear();
    ws_.row_of.assign(ids_.size(), -1);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (ids_[i] >= 0) ws_.slots.push_back(static_cast<std::int32_t>(i));
    }
    std::sort(ws_.slots.begin(), ws_.slots.end(), [&](std::int32_t a, std::int32_t b) {
      const std::int32_t id_a = ids_[static_cast<std::size_t>(a)];
      const std::int32_t id_b = ids_[static_cast<std::size_t>(b)];
      return id_a != id_b ? id_a < id_b : a < b;
    });
    for (std::size_t r = 0; r < ws_.slots.size(); ++r) {
      ws_.row_of[static_cast<std::size_t>(ws_.slots[r])] = static_cast<std::int32_t>(r);
    }
  }

  /// Calls make(expert, first, count) for every run of rows of one expert; rows count from the
  /// range.
  template <class Make>
  void for_runs(Share range, Make make) const {
    for (std::int64_t begin = range.begin; begin < range.end;) {
      std::int64_t end = begin + 1;
      while (end < range.end && expert_of_row(end) == expert_of_row(begin)) ++end;
      make(expert_of_row(begin), begin - range.begin, end - begin);
      begin = end;
    }
  }

  static const float* bias_of(const float* biases, std::int64_t expert, std::int64_t n) {
    return biases != nullptr ? biases + expert * n : nullptr;
  }

  void gate_and_up(Share range) {
    const std::int64_t rows = range.end - range.begin;
    const std::int64_t gate_n = w_.gate->n();
    ws_.gate.reserve(rows * gate_n * 2);
    if (w_.up != nullptr) ws_.up.reserve(rows * sizes_.width * 2);
    auto& tasks = ws_.grouped.tasks;
    tasks.clear();
    for_runs(range, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      tasks.push_back({.w = &w_.gate->at(expert),
                       .y = ops::rows_of(matrix(ws_.gate, rows, gate_n), first, count),
                       .first_row = first,
                       .bias = bias_of(w_.gate_bias, expert, gate_n)});
      if (w_.up == nullptr) return;
      tasks.push_back({.w = &w_.up->at(expert),
                       .y = ops::rows_of(matrix(ws_.up, rows, sizes_.width), first, count),
                       .first_row = first,
                       .bias = bias_of(w_.up_bias, expert, sizes_.width)});
    });
    auto& gather = ws_.grouped.gather;
    gather.clear();
    for (std::int64_t r = range.begin; r < range.end; ++r) {
      gather.push_back(static_cast<std::int32_t>(token_of_row(r)));
    }
    ops::gemm(context_, ws_.grouped.gemm,
              {.x = x_, .activations = rules_.activations, .gather = gather}, tasks);
  }

  /// h of `rows` rows; `range` says which slots' routing weights multiply, none for the shared
  /// expert.
  void activate(std::int64_t rows, std::int64_t width, const Share* range) {
    ws_.h.reserve(rows * width * 2);
    const bool alternate = range != nullptr && w_.up == nullptr;
    const bool weighted = range != nullptr && rules_.weight == RoutingWeight::kBeforeDown;
    const auto run = glu();
    context_.pool().parallel([&](int thread) {
      const Share share = share_of(rows, 1, thread, context_.num_threads());
      for (std::int64_t r = share.begin; r < share.end; ++r) {
        const Bf16* gate = ws_.gate.as<Bf16>() + r * width * (alternate ? 2 : 1);
        kernels::GluArgs args = {};
        args.gate = gate;
        args.up = alternate ? gate + 1 : ws_.up.as<Bf16>() + r * width;
        args.step = alternate ? 2 : 1;
        args.count = width;
        args.limit = rules_.limit;
        args.weight = weighted ? weight_of_row(range->begin + r) : 1.0F;
        args.out = ws_.h.as<Bf16>() + r * width;
        run(args);
      }
    });
  }

  void (*glu() const)(const kernels::GluArgs&) noexcept {
    switch (rules_.activation) {
      case ExpertActivation::kSilu:
        return rows_.glu_silu;
      case ExpertActivation::kSiluRounded:
        return rows_.glu_silu_rounded;
      case ExpertActivation::kGptOss:
        return rows_.glu_gpt_oss;
    }
    return rows_.glu_silu;
  }

  float weight_of_row(std::int64_t row) const {
    return weights_[static_cast<std::size_t>(ws_.slots[static_cast<std::size_t>(row)])];
  }

  void down(Share range) {
    const std::int64_t rows = range.end - range.begin;
    ws_.out.reserve(rows * sizes_.hidden * 2);
    auto& tasks = ws_.grouped.tasks;
    tasks.clear();
    for_runs(range, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      tasks.push_back({.w = &w_.down->at(expert),
                       .y = ops::rows_of(matrix(ws_.out, rows, sizes_.hidden), first, count),
                       .first_row = first,
                       .bias = bias_of(w_.down_bias, expert, sizes_.hidden)});
    });
    const MatrixView h = {ws_.h.as<Bf16>(), FloatType::kBf16, rows, sizes_.width, 0};
    ops::gemm(context_, ws_.grouped.gemm, {.x = h, .activations = rules_.activations}, tasks);
  }

  /// sums[token] += out[row]
  void add_row(const Bf16* out, float weight, float* sums) const {
    for (std::int64_t i = 0; i < sizes_.hidden; ++i) {
      float value = formats::decode_bf16(out[i]);
      if (weight != 1.0F) value = formats::decode_bf16(formats::store_bf16(value * weight));
      sums[i] += value;
      if (rules_.round_each_add) sums[i] = formats::decode_bf16(formats::store_bf16(sums[i]));
    }
  }

  /// Rows of the range, each to its token, in ascending order: by expert, then by slot.
  void add_rows(Share range) {
    const bool weighted = rules_.weight == RoutingWeight::kAfterDown;
    context_.pool().parallel([&](int thread) {
      const Share share = share_of(sizes_.tokens, 1, thread, context_.num_threads());
      for (std::int64_t t = share.begin; t < share.end; ++t) {
        const std::int32_t* rows = ws_.row_of.data() + t * sizes_.top_k;
        for (std::int64_t last = range.begin - 1;;) {
          std::int64_t next = range.end;  // the smallest row after `last`
          for (std::int64_t i = 0; i < sizes_.top_k; ++i) {
            if (rows[i] > last && rows[i] < next) next = rows[i];
          }
          if (next == range.end) break;
          add_row(ws_.out.as<Bf16>() + (next - range.begin) * sizes_.hidden,
                  weighted ? weight_of_row(next) : 1.0F, ws_.sums.as<float>() + t * sizes_.hidden);
          last = next;
        }
      }
    });
  }

  void add_shared(Share tokens) {
    const std::int64_t rows = tokens.end - tokens.begin;
    const std::int64_t width = w_.shared_down->k();
    ws_.gate.reserve(rows * width * 2);
    ws_.up.reserve(rows * width * 2);
    ws_.out.reserve(rows * sizes_.hidden * 2);
    MatrixView x = x_;
    const std::int64_t stride = x.stride != 0 ? x.stride : x.columns;
    x.data = static_cast<const std::byte*>(x.data) +
             tokens.begin * stride * (x.type == FloatType::kBf16 ? 2 : 4);
    x.rows = rows;
    auto& tasks = ws_.grouped.tasks;
    tasks.assign({{.w = w_.shared_gate, .y = matrix(ws_.gate, rows, width)},
                  {.w = w_.shared_up, .y = matrix(ws_.up, rows, width)}});
    ops::gemm(context_, ws_.grouped.gemm, {.x = x, .activations = rules_.activations}, tasks);
    activate(rows, width, nullptr);
    tasks.assign({{.w = w_.shared_down, .y = matrix(ws_.out, rows, sizes_.hidden)}});
    const MatrixView h = {ws_.h.as<Bf16>(), FloatType::kBf16, rows, width, 0};
    ops::gemm(context_, ws_.grouped.gemm, {.x = h, .activations = rules_.activations}, tasks);
    context_.pool().parallel([&](int thread) {
      const Share share = share_of(rows, 1, thread, context_.num_threads());
      for (std::int64_t r = share.begin; r < share.end; ++r) {
        add_row(ws_.out.as<Bf16>() + r * sizes_.hidden, 1.0F,
                ws_.sums.as<float>() + (tokens.begin + r) * sizes_.hidden);
      }
    });
  }

  void store(const MutableMatrixView& y) const {
    const std::int64_t stride = y.stride != 0 ? y.stride : y.columns;
    for (std::int64_t t = 0; t < sizes_.tokens; ++t) {
      const float* sums = ws_.sums.as<float>() + t * sizes_.hidden;
      if (y.type == FloatType::kBf16) {
        rows_.store_bf16(sums, sizes_.hidden, static_cast<Bf16*>(y.data) + t * stride);
      } else {
        rows_.store_f32(sums, sizes_.hidden, static_cast<float*>(y.data) + t * stride);
      }
    }
  }

  const Context& context_;
  const MatrixView& x_;
  std::span<const std::int32_t> ids_;
  std::span<const float> weights_;
  const ExpertWeights& w_;
  const ExpertRules& rules_;
  Sizes sizes_;
  const kernels::RowKernels& rows_;
  Workspace& ws_;
};

}  // namespace

void experts(const Context& context, const MatrixView& x, std::span<const std::int32_t> ids,
             std::span<const float> weights, const ExpertWeights& w, const ExpertRules& rules,
             const MutableMatrixView& y) {
  const Sizes sizes = check(x, ids, weights, w, y);
  if (sizes.tokens == 0 || sizes.hidden == 0) return;
  // All of it on the pool's first thread: the parallel regions then need no hand-over, and every
  // thread computes in the contract's floating-point state.
  ExpertsCall call(context, x, ids, weights, w, rules, sizes);
  context.pool().lead([&] { call.run(y); });
}

}  // namespace deepinfer
