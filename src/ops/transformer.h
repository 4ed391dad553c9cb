// The row operations of a decoder, split over threads. Matrices are dense bf16 [rows, columns].
// Every row is computed alone, so bits do not depend on how rows are batched or split.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deepinfer/runtime.h"
#include "runtime/memory.h"

namespace deepinfer::ops {

/// out[r] = bf16(bf16(x[r] / sqrt(mean(x[r]^2) + eps)) * weight); `weight` [columns] at any
/// address.
void rms_norm(const Context& context, const std::uint16_t* x, const std::uint16_t* weight,
              std::int64_t rows, std::int64_t columns, float eps, std::uint16_t* out);

/// x = bf16(x + y)
void add(const Context& context, std::uint16_t* x, const std::uint16_t* y, std::int64_t rows,
         std::int64_t columns);

/// gate = bf16(bf16(silu(gate)) * up)
void silu_mul(const Context& context, std::uint16_t* gate, const std::uint16_t* up,
              std::int64_t rows, std::int64_t columns);

/// Inverse frequencies base^(-2i / head_dim), i < head_dim / 2, in f32 as the vendor computes them.
std::vector<float> rope_frequencies(double base, std::int64_t head_dim);

/// bf16 cosines and sines of position * frequency, [rows, head_dim / 2] each, for positions
/// first, first + 1, ...
void rope_table(std::span<const float> frequencies, std::int64_t first, std::int64_t rows,
                std::uint16_t* cos, std::uint16_t* sin);

/// Rotates `heads` heads of every row in place; rows are `stride` elements apart.
void rope(const Context& context, std::uint16_t* x, std::int64_t stride, std::int64_t rows,
          std::int64_t heads, std::int64_t head_dim, const std::uint16_t* cos,
          const std::uint16_t* sin);

struct Attention {
  const std::uint16_t* q;  // [rows, heads, head_dim]
  const std::uint16_t* k;  // [positions, kv_heads, head_dim]
  const std::uint16_t* v;  // [positions, kv_heads, head_dim]
  std::uint16_t* out;      // [rows, heads, head_dim]
  std::int64_t rows;
  std::int64_t first;  // position of row 0; row r sees positions 0 .. first + r
  std::int64_t heads;
  std::int64_t kv_heads;  // divides heads: neighbouring query heads share one
  std::int64_t head_dim;
  float scale;
};

/// Bytes that attention() needs for `positions` cached positions.
std::int64_t attention_scratch_bytes(const Context& context, std::int64_t positions,
                                     std::int64_t head_dim);

/// Causal grouped-query attention. `scratch` is at least attention_scratch_bytes().
void attention(const Context& context, const Attention& a, AlignedBuffer& scratch);

/// -ln softmax(logits[r])[next[r]] for every row of logits [next.size(), columns].
std::vector<double> token_losses(const Context& context, std::span<const float> logits,
                                 std::span<const std::int32_t> next);

/// The first row of bf16 [rows, columns] that holds a NaN, or -1.
std::int64_t first_nan_row(const std::uint16_t* x, std::int64_t rows, std::int64_t columns);

}  // namespace deepinfer::ops
