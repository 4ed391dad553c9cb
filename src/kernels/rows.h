// Row kernels: everything between GEMMs that has an order of operations. One portable source,
// included by every instruction-set file and compiled with its flags: loops over 16 lanes become
// vectors, and since contraction is off and every fma is named, the bits are those of the scalar
// code. Sums use lane i mod 16, ascending, and the tree of docs/determinism.md.
#pragma once

#include "formats/bf16.h"
#include "formats/e4m3fn.h"
#include "kernels/kernel.h"
#include "kernels/math.h"

namespace deepinfer::kernels::rows {

using formats::decode_bf16;
using formats::float_of;
using formats::store_bf16;

/// for h in 8, 4, 2, 1: a[i] += a[i + h]
DEEPINFER_INLINE float tree(const float* lanes) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) a[i] += a[i + 4];
  for (int i = 0; i < 2; ++i) a[i] += a[i + 2];
  return a[0] + a[1];
}

/// Quantizes up to 32 values (zero-padded): the largest magnitude, the scale, codes, values.
DEEPINFER_INLINE void quantize_block(const float* x, std::int64_t count, formats::ScaleLimit limit,
                                     std::uint16_t* xq) {
  std::uint32_t largest = 0;
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t magnitude = formats::bits_of(x[i]) & formats::kMagnitudeBits;
    largest = magnitude > largest ? magnitude : largest;
  }
  constexpr std::int32_t kLargestScaleByte = 127 + 119;  // above, s and 1/s are not both normal
  const std::int32_t byte = formats::choose_scale_byte(float_of(largest), limit);
  const bool bad = largest >= formats::kInfinityBits || byte > kLargestScaleByte;
  const float scale = float_of(static_cast<std::uint32_t>(bad ? 127 : byte) << 23);
  const float inverse = float_of(static_cast<std::uint32_t>(bad ? 127 : 254 - byte) << 23);
  std::uint16_t out[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const std::uint32_t u = formats::bits_of(x[i]);
    const float magnitude = float_of(u & formats::kMagnitudeBits) * inverse;
    const std::uint32_t code = formats::round_e4m3fn_magnitude(magnitude);
    const float small = static_cast<float>(static_cast<std::int32_t>(code)) * 0x1p-9F;
    const float value = code < 8 ? small : float_of((code << 20) + (120U << 23));
    const std::uint32_t bits = formats::bits_of(value * scale) | (u & formats::kSignBit);
    out[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  for (std::int64_t i = 0; i < count; ++i) xq[i] = bad ? formats::kBf16Nan : out[i];
}

static void quantize_bf16(const std::uint16_t* x, std::int64_t k, formats::ScaleLimit limit,
                          std::uint16_t* xq) noexcept {
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const std::int64_t count = k - begin < kBlock ? k - begin : kBlock;
    float block[kBlock] = {};
    if (count == kBlock) {
      for (int i = 0; i < kBlock; ++i) block[i] = decode_bf16(x[begin + i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) block[i] = decode_bf16(x[begin + i]);
    }
    quantize_block(block, count, limit, xq + begin);
  }
}

static void quantize_f32(const float* x, std::int64_t k, formats::ScaleLimit limit,
                         std::uint16_t* xq) noexcept {
  for (std::int64_t begin = 0; begin < k; begin += kBlock) {
    const std::int64_t count = k - begin < kBlock ? k - begin : kBlock;
    float block[kBlock] = {};
    for (std::int64_t i = 0; i < count; ++i) block[i] = x[begin + i];
    quantize_block(block, count, limit, xq + begin);
  }
}

/// Values below 2^-100 become +0, so that no subnormal can arise inside a block.
DEEPINFER_INLINE std::uint16_t flush_tiny(std::uint16_t code) {
  constexpr std::uint32_t kTiny = 27U << 7;  // 2^-100 in bf16
  return static_cast<std::uint16_t>((code & 0x7FFFU) < kTiny ? 0 : code);
}

DEEPINFER_INLINE void arrange_chunk(const std::uint16_t* x, const Arrangement& arrangement,
                                    std::int64_t position, void* out) {
  const std::int32_t chunk = arrangement.chunk;
  const std::uint16_t* order = arrangement.order;
  if (arrangement.as_f32) {
    float* f32 = static_cast<float*>(out) + position;
    for (std::int32_t i = 0; i < chunk; ++i) f32[i] = decode_bf16(x[order[i]]);
  } else {
    std::uint16_t* bf16 = static_cast<std::uint16_t*>(out) + position;
    for (std::int32_t i = 0; i < chunk; ++i) bf16[i] = x[order[i]];
  }
}

static void arrange(const std::uint16_t* x, std::int64_t k, const Arrangement& arrangement,
                    void* out) noexcept {
  const std::int32_t chunk = arrangement.chunk;
  for (std::int64_t begin = 0; begin < k; begin += chunk) {
    const std::int64_t count = k - begin < chunk ? k - begin : chunk;
    std::uint16_t padded[kSuperblock];
    if (arrangement.flush_tiny) {
      for (std::int64_t i = 0; i < count; ++i) padded[i] = flush_tiny(x[begin + i]);
    } else {
      for (std::int64_t i = 0; i < count; ++i) padded[i] = x[begin + i];
    }
    for (std::int64_t i = count; i < chunk; ++i) padded[i] = 0;
    arrange_chunk(padded, arrangement, begin, out);
  }
}

static void store_bf16_row(const float* y, std::int64_t count, std::uint16_t* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = store_bf16(y[i]);
}

static void store_f32_row(const float* y, std::int64_t count, float* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) out[i] = formats::store_f32(y[i]);
}

/// Sum of a[i] * b[i]; `load` turns an element into f32.
template <class A, class B, class LoadA, class LoadB>
DEEPINFER_INLINE float lane_dot(const A* a, const B* b, std::int64_t count, LoadA load_a,
                                LoadB load_b) {
  float acc[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      acc[l] = fma32(load_a(a[i + l]), load_b(b[i + l]), acc[l]);
    }
  }
  for (int l = 0; i < count; ++i, ++l) acc[l] = fma32(load_a(a[i]), load_b(b[i]), acc[l]);
  return tree(acc);
}

static void rms_norm(const std::uint16_t* x, const std::uint16_t* weight, std::int64_t count,
                     float eps, std::uint16_t* out) noexcept {
  const auto widen = [](std::uint16_t v) __attribute__((always_inline)) { return decode_bf16(v); };
  const float sum = lane_dot(x, x, count, widen, widen);
  const float mean = sum / static_cast<float>(count);
  const float inverse = 1.0F / __builtin_sqrtf(mean + eps);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t normed = store_bf16(decode_bf16(x[i]) * inverse);
    out[i] = store_bf16(decode_bf16(normed) * decode_bf16(weight[i]));
  }
}

static void add(std::uint16_t* x, const std::uint16_t* y, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) x[i] = store_bf16(decode_bf16(x[i]) + decode_bf16(y[i]));
}

static void silu_mul(const std::uint16_t* gate, const std::uint16_t* up, std::int64_t count,
                     std::uint16_t* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t activated = store_bf16(silu32(decode_bf16(gate[i])));
    out[i] = store_bf16(decode_bf16(activated) * decode_bf16(up[i]));
  }
}

static void rope(std::uint16_t* head, const std::uint16_t* cos, const std::uint16_t* sin,
                 std::int64_t head_dim) noexcept {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const float c = decode_bf16(cos[i]);
    const float s = decode_bf16(sin[i]);
    const float a = decode_bf16(head[i]);
    const float b = decode_bf16(head[i + half]);
    const float ac = decode_bf16(store_bf16(a * c));
    const float bs = decode_bf16(store_bf16(b * s));
    const float bc = decode_bf16(store_bf16(b * c));
    const float as = decode_bf16(store_bf16(a * s));
    head[i] = store_bf16(ac - bs);
    head[i + half] = store_bf16(bc + as);
  }
}

/// Softmax of q . k over the cached positions, then the weighted sum of v; position t is in lane
/// t mod 16 of every sum over positions. The division by the softmax sum comes last.
static void attend(const std::uint16_t* q, const std::uint16_t* k, const std::uint16_t* v,
                   std::int64_t stride, std::int64_t length, std::int64_t head_dim, float scale,
                   float* scratch, std::uint16_t* out) noexcept {
  const auto widen = [](std::uint16_t x) __attribute__((always_inline)) { return decode_bf16(x); };
  float* weights = scratch;
  float* acc = scratch + length;  // [16, head_dim]
  float largest = -float_of(formats::kInfinityBits);
  bool nan = false;
  for (std::int64_t t = 0; t < length; ++t) {
    weights[t] = lane_dot(q, k + t * stride, head_dim, widen, widen) * scale;
    nan |= weights[t] != weights[t];
    largest = weights[t] > largest ? weights[t] : largest;
  }
  if (nan) largest = float_of(formats::kNanBits);
  for (std::int64_t t = 0; t < length; ++t) weights[t] = exp32(weights[t] - largest);
  float lanes[kLanes] = {};
  for (std::int64_t t = 0; t < length; ++t) lanes[t % kLanes] += weights[t];
  const float sum = tree(lanes);
  for (std::int64_t i = 0; i < kLanes * head_dim; ++i) acc[i] = 0.0F;
  for (std::int64_t t = 0; t < length; ++t) {
    float* lane = acc + (t % kLanes) * head_dim;
    const std::uint16_t* row = v + t * stride;
    const float weight = weights[t];
    for (std::int64_t i = 0; i < head_dim; ++i) {
      lane[i] = fma32(weight, decode_bf16(row[i]), lane[i]);
    }
  }
  for (int h = kLanes / 2; h >= 1; h /= 2) {
    for (std::int64_t i = 0; i < h * head_dim; ++i) acc[i] += acc[i + h * head_dim];
  }
  for (std::int64_t i = 0; i < head_dim; ++i) out[i] = store_bf16(acc[i] / sum);
}

static void reduce(const float* acc, std::int64_t count, float* y) noexcept {
  for (std::int64_t i = 0; i < count; ++i) y[i] = tree(acc + i * kLanes);
}

static float exp_sum(const float* x, std::int64_t count, float* largest) noexcept {
  float most = -float_of(formats::kInfinityBits);
  for (std::int64_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
  *largest = most;
  float acc[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) acc[l] += exp32(x[i + l] - most);
  }
  for (int l = 0; i < count; ++i, ++l) acc[l] += exp32(x[i] - most);
  return tree(acc);
}

constexpr RowKernels kRows = {quantize_bf16,  quantize_f32,  arrange,  reduce,
                              store_bf16_row, store_f32_row, rms_norm, add,
                              silu_mul,       rope,          attend,   exp_sum};

}  // namespace deepinfer::kernels::rows
