#include "ops/gemm.h"

#include <algorithm>
#include <array>

#include "activations/activations.h"
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

/// One task with what was decided for it.
struct Plan {
  const GemmTask* task;
  const kernels::Kernel* kernel;
  const std::byte* x;
  std::int64_t x_stride;
};

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

/// y[rows m0.., columns n0..] = store(value + bias)
void store_tile(const kernels::RowKernels& rows, const GemmTask& task, float* values,
                std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n) {
  const std::int64_t stride = task.y.stride != 0 ? task.y.stride : task.y.columns;
  for (std::int64_t i = 0; i < m; ++i) {
    float* value = values + i * n;
    if (task.bias != nullptr) {
      for (std::int64_t j = 0; j < n; ++j) value[j] += task.bias[n0 + j];
    }
    const std::int64_t at = (m0 + i) * stride + n0;
    if (task.y.type == FloatType::kBf16) {
      rows.store_bf16(value, n, static_cast<std::uint16_t*>(task.y.data) + at);
    } else {
      rows.store_f32(value, n, static_cast<float*>(task.y.data) + at);
    }
  }
}

struct Scratch {
  float* acc;
  float* values;
  void* scales;
};

/// Columns [begin, end) of one task.
void run_columns(const Plan& plan, const kernels::RowKernels& rows, std::int64_t m, Share share,
                 const Scratch& scratch) {
  const Weight& w = *plan.task->w;
  const std::int64_t most = rows_of_w_per_call(m);
  for (std::int64_t m0 = 0; m0 < m; m0 += kMc) {
    const std::int64_t mc = std::min(kMc, m - m0);
    for (std::int64_t n0 = share.begin; n0 < share.end;) {
      const std::int64_t nc = weights::rows_per_call(w, n0, std::min(most, share.end - n0));
      const weights::ScaleRows scales =
          weights::scale_rows(w, n0, nc, *plan.kernel->arrangement, scratch.scales);
      kernels::GemmArgs args = {};
      args.x = plan.x + m0 * plan.x_stride;
      args.x_stride = plan.x_stride;
      args.w = static_cast<const std::uint8_t*>(w.view().codes) + n0 * w.view().row_bytes;
      args.w_stride = w.view().row_bytes;
      args.scales = scales.data;
      args.scale_stride = scales.stride;
      args.m = mc;
      args.n = nc;
      args.k = w.k();
      args.acc = scratch.acc;
      run_kernel(*plan.kernel, args);
      rows.reduce(scratch.acc, mc * nc, scratch.values);
      store_tile(rows, *plan.task, scratch.values, m0, mc, n0, nc);
      n0 += nc;
    }
  }
}

}  // namespace

std::int64_t GemmWorkspace::bytes() const noexcept {
  std::int64_t total = 0;
  for (const Arranged& a : arranged_) total += a.buffer.size();
  for (const PerThread& t : threads_) {
    total += t.row.size() + t.acc.size() + t.values.size() + t.scales.size();
  }
  return total;
}

void gemm(const Context& context, GemmWorkspace& workspace, const MatrixView& x,
          Activations activations, std::span<const GemmTask> tasks) {
  const std::int64_t m = x.rows;
  if (m == 0) return;
  const kernels::RowKernels& rows = *kernels::table_of(context.isa()).rows;
  const auto num_threads = static_cast<std::size_t>(context.num_threads());
  constexpr std::size_t kMaxTasks = 4;  // q, k, v or gate, up: the plans need no allocation
  std::array<Plan, kMaxTasks> plans;

  // Which kernels, and which arrangements of x they need.
  std::size_t num_arranged = 0;
  std::int64_t scale_bytes = 0;
  if (workspace.arranged_.size() < tasks.size()) workspace.arranged_.resize(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Weight& w = *tasks[i].w;
    const kernels::Kernel& kernel = kernels::select_kernel(
        context.isa(), w.view().element, weights::scales_kind(w), std::min(m, kMc));
    const Activations mode = w.view().element == Element::kBf16 ? Activations::kAsIs : activations;
    std::size_t at = 0;
    while (at < num_arranged && (workspace.arranged_[at].arrangement != kernel.arrangement ||
                                 workspace.arranged_[at].activations != mode)) {
      ++at;
    }
    GemmWorkspace::Arranged& arranged = workspace.arranged_[at];
    if (at == num_arranged) {
      ++num_arranged;
      arranged.arrangement = kernel.arrangement;
      arranged.activations = mode;
      arranged.stride = activations::arranged_row_bytes(x.columns, *kernel.arrangement);
      arranged.buffer.reserve(m * arranged.stride);
    }
    plans[i] = {&tasks[i], &kernel, arranged.buffer.data(), arranged.stride};
    scale_bytes = std::max(scale_bytes, weights::scale_scratch_bytes(w, rows_of_w_per_call(m)));
  }

  if (workspace.threads_.size() < num_threads) workspace.threads_.resize(num_threads);
  const std::int64_t outputs = std::min(m, kMc) * rows_of_w_per_call(m);
  for (GemmWorkspace::PerThread& t : workspace.threads_) {
    t.row.reserve(x.columns * 2);
    t.acc.reserve(outputs * kernels::kLanes * 4);
    t.values.reserve(outputs * 4);
    t.scales.reserve(scale_bytes);
  }

  const auto arrange_share = [&](int thread, int of) {
    const Share share = share_of(m, 1, thread, of);
    auto* scratch = workspace.threads_[static_cast<std::size_t>(thread)].row.as<std::uint16_t>();
    for (std::size_t i = 0; i < num_arranged; ++i) {
      GemmWorkspace::Arranged& a = workspace.arranged_[i];
      activations::arrange_rows(rows, x, a.activations, *a.arrangement, share.begin, share.end,
                                scratch, a.buffer.data(), a.stride);
    }
  };
  const auto run_share = [&](int thread) {
    const GemmWorkspace::PerThread& t = workspace.threads_[static_cast<std::size_t>(thread)];
    const Scratch scratch = {t.acc.as<float>(), t.values.as<float>(), t.scales.data()};
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Share share = share_of(tasks[i].w->n(), kNcUnit, thread, context.num_threads());
      run_columns(plans[i], rows, m, share, scratch);
    }
  };
  context.pool().lead([&] {
    if (m == 1) {  // one row takes less time than handing it over
      arrange_share(0, 1);
    } else {
      context.pool().parallel([&](int thread) { arrange_share(thread, context.num_threads()); });
    }
    context.pool().parallel(run_share);
  });
}

}  // namespace deepinfer::ops
