#include "ops/transformer.h"

#include <limits>

#include "formats/bf16.h"
#include "kernels/math.h"
#include "kernels/registry.h"
#include "runtime/thread_pool.h"

namespace deepinfer::ops {
namespace {

const kernels::RowKernels& row_kernels(const Context& context) {
  return *kernels::table_of(context.isa()).rows;
}

/// Calls work(begin, end, thread) on shares of `count` things; a single thing is not worth a
/// hand-over to other threads.
template <class Work>
void split(const Context& context, std::int64_t count, const Work& work) {
  ThreadPool& pool = context.pool();
  pool.lead([&] {
    if (count <= 1) {
      work(std::int64_t{0}, count, 0);
      return;
    }
    pool.parallel([&](int thread) {
      const Share share = share_of(count, 1, thread, pool.num_threads());
      work(share.begin, share.end, thread);
    });
  });
}

}  // namespace

void rms_norm(const Context& context, const std::uint16_t* x, const std::uint16_t* weight,
              std::int64_t rows, std::int64_t columns, float eps, std::uint16_t* out) {
  const kernels::RowKernels& k = row_kernels(context);
  split(context, rows, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      k.rms_norm(x + r * columns, weight, columns, eps, out + r * columns);
    }
  });
}

void add(const Context& context, std::uint16_t* x, const std::uint16_t* y, std::int64_t rows,
         std::int64_t columns) {
  const kernels::RowKernels& k = row_kernels(context);
  split(context, rows, [&](std::int64_t begin, std::int64_t end, int) {
    k.add(x + begin * columns, y + begin * columns, (end - begin) * columns);
  });
}

void silu_mul(const Context& context, std::uint16_t* gate, const std::uint16_t* up,
              std::int64_t rows, std::int64_t columns) {
  const kernels::RowKernels& k = row_kernels(context);
  split(context, rows, [&](std::int64_t begin, std::int64_t end, int) {
    std::uint16_t* rows_of_gate = gate + begin * columns;
    k.glu_silu_rounded({.gate = rows_of_gate,
                        .up = up + begin * columns,
                        .step = 1,
                        .count = (end - begin) * columns,
                        .limit = std::numeric_limits<float>::infinity(),
                        .weight = 1.0F,
                        .out = rows_of_gate});
  });
}

std::vector<float> rope_frequencies(double base, std::int64_t head_dim) {
  // The vendor computes base ** (2i / head_dim) in f32, then its f32 reciprocal.
  std::vector<float> out(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const double power = kernels::exp64(static_cast<double>(exponent) * kernels::log64(base));
    out[i] = 1.0F / static_cast<float>(power);
  }
  return out;
}

void rope_table(std::span<const float> frequencies, std::int64_t first, std::int64_t rows,
                std::uint16_t* cos, std::uint16_t* sin) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(first + r) * frequencies[static_cast<std::size_t>(i)];
      const kernels::SinCos value = kernels::sincos64(static_cast<double>(angle));
      cos[r * half + i] = formats::store_bf16(static_cast<float>(value.cos));
      sin[r * half + i] = formats::store_bf16(static_cast<float>(value.sin));
    }
  }
}

void rope(const Context& context, std::uint16_t* x, std::int64_t stride, std::int64_t rows,
          std::int64_t heads, std::int64_t head_dim, const std::uint16_t* cos,
          const std::uint16_t* sin) {
  const kernels::RowKernels& k = row_kernels(context);
  const std::int64_t half = head_dim / 2;
  split(context, rows, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t h = 0; h < heads; ++h) {
        k.rope(x + r * stride + h * head_dim, cos + r * half, sin + r * half, head_dim);
      }
    }
  });
}

std::int64_t attention_scratch_bytes(const Context& context, std::int64_t positions,
                                     std::int64_t head_dim) {
  const std::int64_t floats = positions + kernels::kLanes * head_dim;
  constexpr std::int64_t kLine = 16;  // floats in a cache line: threads do not share one
  return context.num_threads() * ((floats + kLine - 1) / kLine * kLine) * 4;
}

void attention(const Context& context, const Attention& a, AlignedBuffer& scratch) {
  const kernels::RowKernels& k = row_kernels(context);
  const std::int64_t per_thread = scratch.size() / 4 / context.num_threads();
  const std::int64_t stride = a.kv_heads * a.head_dim;
  const std::int64_t group = a.heads / a.kv_heads;
  split(context, a.rows * a.heads, [&](std::int64_t begin, std::int64_t end, int thread) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / a.heads;
      const std::int64_t offset = i % a.heads / group * a.head_dim;
      k.attend(a.q + i * a.head_dim, a.k + offset, a.v + offset, stride, a.first + row + 1,
               a.head_dim, a.scale, scratch.as<float>() + thread * per_thread,
               a.out + i * a.head_dim);
    }
  });
}

std::vector<double> token_losses(const Context& context, std::span<const float> logits,
                                 std::span<const std::int32_t> next) {
  const kernels::RowKernels& k = row_kernels(context);
  const std::size_t columns = next.empty() ? 0 : logits.size() / next.size();
  std::vector<double> losses(next.size());
  split(context, static_cast<std::int64_t>(next.size()),
        [&](std::int64_t begin, std::int64_t end, int) {
          for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
            const float* row = logits.data() + r * columns;
            float largest = 0.0F;
            const float sum = k.exp_sum(row, static_cast<std::int64_t>(columns), &largest);
            const double chosen = static_cast<double>(row[static_cast<std::size_t>(next[r])]);
            losses[r] =
                kernels::log64(static_cast<double>(sum)) + (static_cast<double>(largest) - chosen);
          }
        });
  return losses;
}

std::int64_t first_nan_row(const std::uint16_t* x, std::int64_t rows, std::int64_t columns) {
  constexpr std::uint16_t kInfinity = 0x7F80;
  for (std::int64_t r = 0; r < rows; ++r) {
    bool nan = false;
    for (std::int64_t i = 0; i < columns; ++i) nan |= (x[r * columns + i] & 0x7FFF) > kInfinity;
    if (nan) return r;
  }
  return -1;
}

}  // namespace deepinfer::ops
