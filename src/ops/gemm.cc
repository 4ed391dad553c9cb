#include "ops/gemm.h"

#include <algorithm>

#include "activations/activations.h"
#include "formats/bf16.h"
#include "kernels/cpu.h"
#include "kernels/registry.h"
#include "runtime/thread_pool.h"
#include "weights/weight.h"

namespace deepinfer::ops {
namespace {

// Rows of x per kernel call: their arranged values stay in L2 while all of w passes by.
constexpr std::int64_t kMc = 64;
// Outputs per kernel call: their lanes are at most 64 KiB.
constexpr std::int64_t kMaxOutputs = 1024;
// Rows of w per kernel call are a multiple of this.
constexpr std::int64_t kNcUnit = 16;

std::int64_t rows_of_w_per_call(std::int64_t m) {
  constexpr std::int64_t kMaxNc = 64;  // more only delays the first store
  return std::min(kMaxNc, kMaxOutputs / std::min(m, kMc) / kNcUnit * kNcUnit);
}

struct KernelCall {
  void (*run)(const kernels::GemmArgs&) noexcept;
  kernels::GemmArgs args;
};

void run_call(void* context) {
  const KernelCall& call = *static_cast<KernelCall*>(context);
  call.run(call.args);
}

void run_kernel(const kernels::Kernel& kernel, const kernels::GemmArgs& args) {
  if (kernel.fp_state == kernels::FpState::kIeee) {  // the state that pool threads have anyway
    kernel.run(args);
    return;
  }
  KernelCall call = {kernel.run, args};
  kernels::with_fp_state(kernel.fp_state, run_call, &call);
}

/// values += c[row i of the task, columns n0..]
void add_c(const MatrixView& c, std::int64_t i, std::int64_t n0, std::int64_t n, float* values) {
  const std::int64_t at = i * (c.stride != 0 ? c.stride : c.columns) + n0;
  if (c.type == FloatType::kBf16) {
    const auto* row = static_cast<const std::uint16_t*>(c.data) + at;
    for (std::int64_t j = 0; j < n; ++j) values[j] += formats::decode_bf16(row[j]);
  } else {
    const auto* row = static_cast<const float*>(c.data) + at;
    for (std::int64_t j = 0; j < n; ++j) values[j] += row[j];
  }
}

/// y[rows m0.., columns n0..] = store(value + bias + c)
void store_tile(const kernels::RowKernels& rows, const GemmTask& task, float* values,
                std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n) {
  const std::int64_t stride = task.y.stride != 0 ? task.y.stride : task.y.columns;
  for (std::int64_t i = 0; i < m; ++i) {
    float* value = values + i * n;
    if (task.bias != nullptr) {
      for (std::int64_t j = 0; j < n; ++j) value[j] += task.bias[n0 + j];
    }
    if (task.c.data != nullptr) add_c(task.c, m0 + i, n0, n, value);
    const std::int64_t at = (m0 + i) * stride + n0;
    if (task.y.type == FloatType::kBf16) {
      rows.store_bf16(value, n, static_cast<std::uint16_t*>(task.y.data) + at);
      continue;
    }
    if (task.store == Store::kThroughBf16) {
      for (std::int64_t j = 0; j < n; ++j) {
        value[j] = formats::decode_bf16(formats::store_bf16(value[j]));
      }
    }
    rows.store_f32(value, n, static_cast<float*>(task.y.data) + at);
  }
}

/// out[r, i] = scale of w [r, i] * scale of x [i], for `count` rows of scales.
void multiply_scales(const float* w, const float* x, std::int64_t count, std::int64_t row_floats,
                     float* out) {
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < row_floats; ++i) {
      out[r * row_floats + i] = w[r * row_floats + i] * x[i];
    }
  }
}

}  // namespace

/// One call of gemm(): what was decided, and the work of each thread.
class GemmCall {
 public:
  GemmCall(const Context& context, GemmWorkspace& workspace, const GemmInput& input,
           std::span<const GemmTask> tasks)
      : workspace_(workspace),
        input_(input),
        tasks_(tasks),
        rows_(*kernels::table_of(context.isa()).rows),
        isa_(context.isa()),
        num_threads_(context.num_threads()) {
    plan();
    reserve();
  }

  void run(ThreadPool& pool) {
    pool.lead([&] {
      if (input_.rows() == 1) {  // one row takes less time than handing it over
        arrange(0, 1);
      } else {
        pool.parallel([&](int thread) { arrange(thread, num_threads_); });
      }
      pool.parallel([&](int thread) { multiply(thread); });
    });
  }

 private:
  using Plan = GemmWorkspace::Plan;
  using Arranged = GemmWorkspace::Arranged;

  /// Codes whose scales stay outside of x where they must.
  bool may_be_foreign() const { return input_.codes != nullptr && !input_.requantize; }

  std::size_t arranged_for(const kernels::Arrangement* arrangement, Activations activations) {
    std::size_t at = 0;
    while (at < num_arranged_ && (workspace_.arranged_[at].arrangement != arrangement ||
                                  workspace_.arranged_[at].activations != activations)) {
      ++at;
    }
    if (at < num_arranged_) return at;
    if (workspace_.arranged_.size() <= at) workspace_.arranged_.emplace_back();
    Arranged& arranged = workspace_.arranged_[at];
    arranged.arrangement = arrangement;
    arranged.activations = activations;
    arranged.stride = activations::arranged_row_bytes(input_.columns(), *arrangement);
    arranged.buffer.reserve(input_.rows() * arranged.stride);
    ++num_arranged_;
    return at;
  }

  /// Which kernels, and which arrangements of x they need.
  void plan() {
    workspace_.plans_.resize(tasks_.size());
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const GemmTask& task = tasks_[i];
      const WeightView& view = task.w->view();
      Plan& plan = workspace_.plans_[i];
      plan = {};
      plan.task = &task;
      if (task.y.rows == 0) continue;
      plan.kernel = &kernels::select_kernel(isa_, view.element, weights::scales_kind(*task.w),
                                            std::min(task.y.rows, kMc));
      const Activations mode =
          view.element == Element::kBf16 ? Activations::kAsIs : input_.activations;
      plan.arranged = arranged_for(plan.kernel->arrangement, mode);
      if (may_be_foreign()) {
        plan.foreign_kernel = &kernels::select_kernel(isa_, view.element, kernels::Scales::kF32, 1);
        plan.foreign_arranged = arranged_for(plan.foreign_kernel->arrangement, mode);
      }
    }
  }

  void reserve() {
    std::int64_t scale_bytes = 0;
    std::int64_t outputs = 0;
    for (const GemmTask& task : tasks_) {
      if (task.y.rows == 0) continue;
      const std::int64_t nc = rows_of_w_per_call(task.y.rows);
      scale_bytes = std::max(scale_bytes, weights::scale_scratch_bytes(*task.w, nc));
      if (may_be_foreign()) {  // spread-out scales of w, of one row of x, and their products
        scale_bytes = std::max(scale_bytes, weights::spread_bytes(*task.w, nc) * 3);
      }
      outputs = std::max(outputs, std::min(task.y.rows, kMc) * nc);
    }
    if (may_be_foreign()) workspace_.foreign_.reserve(input_.rows());
    const auto num_threads = static_cast<std::size_t>(num_threads_);
    if (workspace_.threads_.size() < num_threads) workspace_.threads_.resize(num_threads);
    for (GemmWorkspace::PerThread& t : workspace_.threads_) {
      t.row.reserve(input_.columns() * 2);
      t.acc.reserve(outputs * kernels::kLanes * 4);
      t.values.reserve(outputs * 4);
      t.scales.reserve(scale_bytes);
    }
  }

  /// Part `part` of `of` of the rows of x.
  void arrange(int part, int of) {
    const Share share = share_of(input_.rows(), 1, part, of);
    auto* scratch = workspace_.threads_[static_cast<std::size_t>(part)].row.as<std::uint16_t>();
    for (std::size_t i = 0; i < num_arranged_; ++i) {
      const Arranged& a = workspace_.arranged_[i];
      const activations::Target target = {a.arrangement, a.buffer.data(), a.stride,
                                          input_.gather.data()};
      if (input_.codes == nullptr) {
        activations::arrange_rows(rows_, input_.x, a.activations, target, share.begin, share.end,
                                  scratch);
      } else {
        activations::arrange_codes(rows_, *input_.codes, input_.requantize, target, share.begin,
                                   share.end, scratch, workspace_.foreign_.as<std::uint8_t>());
      }
    }
  }

  /// This thread's columns of every task.
  void multiply(int thread) {
    for (const Plan& plan : workspace_.plans_) {
      const GemmTask& task = *plan.task;
      if (task.y.rows == 0) continue;
      const std::int64_t n = task.num_columns != 0 ? task.num_columns : task.w->n();
      Share columns = share_of(n, kNcUnit, thread, num_threads_);
      columns.begin += task.first_column;
      columns.end += task.first_column;
      if (!may_be_foreign()) {
        multiply_rows(plan, thread, 0, task.y.rows, columns);
        continue;
      }
      const auto* foreign = workspace_.foreign_.as<std::uint8_t>() + task.first_row;
      for (std::int64_t begin = 0; begin < task.y.rows;) {  // runs of rows of one kind
        std::int64_t end = begin + 1;
        while (end < task.y.rows && foreign[end] == foreign[begin]) ++end;
        if (foreign[begin] != 0) {
          multiply_foreign(plan, thread, begin, end, columns);
        } else {
          multiply_rows(plan, thread, begin, end, columns);
        }
        begin = end;
      }
    }
  }

  /// Rows [begin, end) of the task. The kernel was chosen for all of its rows: any kernel of the
  /// format gives the same bits.
  void multiply_rows(const Plan& plan, int thread, std::int64_t begin, std::int64_t end,
                     Share columns) {
    const Weight& w = *plan.task->w;
    const std::int64_t most = rows_of_w_per_call(plan.task->y.rows);
    void* scratch = workspace_.threads_[static_cast<std::size_t>(thread)].scales.data();
    for (std::int64_t m0 = begin; m0 < end; m0 += kMc) {
      const std::int64_t mc = std::min(kMc, end - m0);
      for (std::int64_t n0 = columns.begin; n0 < columns.end;) {
        const std::int64_t nc = weights::rows_per_call(w, n0, std::min(most, columns.end - n0));
        const weights::ScaleRows scales =
            weights::scale_rows(w, n0, nc, *plan.kernel->arrangement, scratch);
        run_tile(plan, *plan.kernel, plan.arranged, scales, thread, {m0, m0 + mc}, {n0, n0 + nc});
        n0 += nc;
      }
    }
  }

  /// Rows with scales that are not inside x: the product of both scales, in f32, is the kernel's.
  void multiply_foreign(const Plan& plan, int thread, std::int64_t begin, std::int64_t end,
                        Share columns) {
    const Weight& w = *plan.task->w;
    const kernels::Arrangement& arrangement = *plan.foreign_kernel->arrangement;
    const std::int64_t most = rows_of_w_per_call(plan.task->y.rows);
    float* of_w = workspace_.threads_[static_cast<std::size_t>(thread)].scales.as<float>();
    const std::int64_t capacity =
        weights::spread_bytes(w, most) / static_cast<std::int64_t>(sizeof(float));
    float* of_x = of_w + capacity;
    float* products = of_x + capacity;
    for (std::int64_t n0 = columns.begin; n0 < columns.end;) {
      const std::int64_t nc = weights::rows_per_call(w, n0, std::min(most, columns.end - n0));
      const weights::SpreadRows spread = weights::spread_rows(w, n0, nc, arrangement, of_w);
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t operand_row = plan.task->first_row + row;
        const auto at = static_cast<std::size_t>(operand_row);
        activations::foreign_scales(*input_.codes,
                                    input_.gather.empty() ? operand_row : input_.gather[at],
                                    arrangement, of_x);
        multiply_scales(of_w, of_x, spread.count, spread.row_floats, products);
        const std::int64_t stride =
            spread.count == 1 ? 0 : spread.row_floats * static_cast<std::int64_t>(sizeof(float));
        run_tile(plan, *plan.foreign_kernel, plan.foreign_arranged, {products, stride}, thread,
                 {row, row + 1}, {n0, n0 + nc});
      }
      n0 += nc;
    }
  }

  /// One kernel call, reduced and stored.
  void run_tile(const Plan& plan, const kernels::Kernel& kernel, std::size_t arranged,
                const weights::ScaleRows& scales, int thread, Share m, Share n) {
    const GemmWorkspace::PerThread& t = workspace_.threads_[static_cast<std::size_t>(thread)];
    const Arranged& x = workspace_.arranged_[arranged];
    const WeightView& view = plan.task->w->view();
    kernels::GemmArgs args = {};
    args.x = x.buffer.data() + (plan.task->first_row + m.begin) * x.stride;
    args.x_stride = x.stride;
    args.w = static_cast<const std::uint8_t*>(view.codes) + n.begin * view.row_bytes;
    args.w_stride = view.row_bytes;
    args.scales = scales.data;
    args.scale_stride = scales.stride;
    args.m = m.end - m.begin;
    args.n = n.end - n.begin;
    args.k = view.k;
    args.acc = t.acc.as<float>();
    run_kernel(kernel, args);
    auto* values = t.values.as<float>();
    rows_.reduce(args.acc, args.m * args.n, values);
    store_tile(rows_, *plan.task, values, m.begin, args.m, n.begin, args.n);
  }

  GemmWorkspace& workspace_;
  const GemmInput& input_;
  std::span<const GemmTask> tasks_;
  const kernels::RowKernels& rows_;
  Isa isa_;
  int num_threads_;
  std::size_t num_arranged_ = 0;
};

GemmWorkspace& thread_workspace() {
  thread_local GemmWorkspace workspace;
  return workspace;
}

std::int64_t GemmWorkspace::bytes() const noexcept {
  std::int64_t total = foreign_.size();
  for (const Arranged& a : arranged_) total += a.buffer.size();
  for (const PerThread& t : threads_) {
    total += t.row.size() + t.acc.size() + t.values.size() + t.scales.size();
  }
  return total;
}

void gemm(const Context& context, GemmWorkspace& workspace, const GemmInput& input,
          std::span<const GemmTask> tasks) {
  if (input.rows() == 0) return;
  GemmCall(context, workspace, input, tasks).run(context.pool());
}

}  // namespace deepinfer::ops
