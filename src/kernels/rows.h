// Row kernels: everything between GEMMs that has an order of operations. One portable source,
// included by every instruction-set file and compiled with its flags: loops over 16 lanes become
// vectors, and since contraction is off and every fma is named, the bits are those of the scalar
// code. Sums use lane i mod 16, ascending, and the tree of docs/determinism.md; their inner loops
// are written over a vector type V of 16 f32 lanes that each file provides:
//   struct V { Lanes; zero, load, load_bf16, broadcast, add, fma, store; reduce }
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

/// out = decode(code) * scale, for a power-of-two scale with which it is exact in bf16.
static void decode_e4m3fn_row(const std::uint8_t* codes, std::int64_t count, float scale,
                              std::uint16_t* out) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = codes[i];
    const std::uint32_t magnitude = code & 0x7FU;
    const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
    const float normal = float_of((magnitude << 20) + (120U << 23));
    const std::uint32_t bits = formats::bits_of((magnitude < 8 ? small : normal) * scale);
    const std::uint32_t value = magnitude == formats::kE4m3fnNan ? formats::kNanBits : bits;
    out[i] = static_cast<std::uint16_t>((value >> 16) | ((code & 0x80U) << 8));
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

template <class V>
static void rms_norm(const std::uint16_t* x, const std::uint16_t* weight, std::int64_t count,
                     float eps, std::uint16_t* out) noexcept {
  auto acc = V::zero();
  std::int64_t whole = 0;
  for (; whole + kLanes <= count; whole += kLanes) {
    const auto v = V::load_bf16(x + whole);
    acc = V::fma(v, v, acc);
  }
  float lanes[kLanes];
  V::store(lanes, acc);
  for (std::int64_t i = whole; i < count; ++i) {
    lanes[i - whole] = fma32(decode_bf16(x[i]), decode_bf16(x[i]), lanes[i - whole]);
  }
  const float sum = tree(lanes);
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

/// out[i] = form(gate, up, weight) of the clamped values.
template <class Form>
DEEPINFER_INLINE void glu(const GluArgs& a, std::int64_t step, Form form) {
  for (std::int64_t i = 0; i < a.count; ++i) {
    const float gate = decode_bf16(a.gate[i * step]);
    const float up = decode_bf16(a.up[i * step]);
    const float low = up < -a.limit ? -a.limit : up;
    a.out[i] = form(gate > a.limit ? a.limit : gate, low > a.limit ? a.limit : low, a.weight);
  }
}

/// With a step that the compiler knows, so that the loop vectorizes.
template <class Form>
DEEPINFER_INLINE void glu(const GluArgs& a, Form form) {
  if (a.step == 1) {
    glu(a, 1, form);
  } else {
    glu(a, a.step, form);
  }
}

DEEPINFER_INLINE float as_bf16(float value) { return decode_bf16(store_bf16(value)); }

DEEPINFER_INLINE std::uint16_t weighted(float value, float weight) {
  const std::uint16_t rounded = store_bf16(value);
  return weight == 1.0F ? rounded : store_bf16(decode_bf16(rounded) * weight);
}

static void glu_silu(const GluArgs& a) noexcept {
  glu(
      a, [](float gate, float up, float weight)
             __attribute__((always_inline)) { return store_bf16(silu32(gate) * up * weight); });
}

static void glu_silu_rounded(const GluArgs& a) noexcept {
  glu(
      a, [](float gate, float up, float weight) __attribute__((always_inline)) {
        return weighted(as_bf16(silu32(gate)) * up, weight);
      });
}

static void glu_gpt_oss(const GluArgs& a) noexcept {
  glu(
      a, [](float gate, float up, float weight) __attribute__((always_inline)) {
        constexpr float kAlpha = 1.702F;
        const float sigmoid = as_bf16(1.0F / (1.0F + exp32(-as_bf16(gate * kAlpha))));
        return weighted(as_bf16(up + 1.0F) * as_bf16(gate * sigmoid), weight);
      });
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

/// scores[t] = (q . k[t]) * scale, 16 positions at a time so that their lanes are reduced together.
template <class V>
DEEPINFER_INLINE void attention_scores(const float* q, const std::uint16_t* k, std::int64_t stride,
                                       std::int64_t length, std::int64_t head_dim, float scale,
                                       float* scores) {
  constexpr std::int64_t kTogether = 16;
  float lanes[kTogether * kLanes];
  for (std::int64_t first = 0; first < length; first += kTogether) {
    const std::int64_t count = length - first < kTogether ? length - first : kTogether;
    for (std::int64_t t = 0; t < count; ++t) {
      const std::uint16_t* row = k + (first + t) * stride;
      auto acc = V::zero();
      std::int64_t whole = 0;
      for (; whole + kLanes <= head_dim; whole += kLanes) {
        acc = V::fma(V::load(q + whole), V::load_bf16(row + whole), acc);
      }
      V::store(lanes + t * kLanes, acc);
      for (std::int64_t i = whole; i < head_dim; ++i) {
        float& lane = lanes[t * kLanes + i - whole];
        lane = fma32(q[i], decode_bf16(row[i]), lane);
      }
    }
    V::reduce(lanes, count, scores + first);
    for (std::int64_t t = 0; t < count; ++t) scores[first + t] *= scale;
  }
}

/// acc[lane][i] = sum over t = lane, lane + 16, ... of weights[t] * v[t][i], for four registers of
/// columns.
template <class V>
DEEPINFER_INLINE void weigh_values(const float* weights, const std::uint16_t* v,
                                   std::int64_t stride, std::int64_t length, std::int64_t head_dim,
                                   float* acc) {
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    auto sum0 = V::zero();
    auto sum1 = V::zero();
    auto sum2 = V::zero();
    auto sum3 = V::zero();
    for (std::int64_t t = lane; t < length; t += kLanes) {
      const std::uint16_t* row = v + t * stride;
      const auto weight = V::broadcast(weights[t]);
      sum0 = V::fma(weight, V::load_bf16(row), sum0);
      sum1 = V::fma(weight, V::load_bf16(row + kLanes), sum1);
      sum2 = V::fma(weight, V::load_bf16(row + 2 * kLanes), sum2);
      sum3 = V::fma(weight, V::load_bf16(row + 3 * kLanes), sum3);
    }
    float* out = acc + lane * head_dim;
    V::store(out, sum0);
    V::store(out + kLanes, sum1);
    V::store(out + 2 * kLanes, sum2);
    V::store(out + 3 * kLanes, sum3);
  }
}

/// The same for one column.
DEEPINFER_INLINE void weigh_column(const float* weights, const std::uint16_t* v,
                                   std::int64_t stride, std::int64_t length, std::int64_t head_dim,
                                   float* acc) {
  for (std::int64_t lane = 0; lane < kLanes; ++lane) acc[lane * head_dim] = 0.0F;
  for (std::int64_t t = 0; t < length; ++t) {
    float& sum = acc[t % kLanes * head_dim];
    sum = fma32(weights[t], decode_bf16(v[t * stride]), sum);
  }
}

/// Softmax of q . k over the cached positions, then the weighted sum of v; position t is in lane
/// t mod 16 of every sum over positions. The division by the softmax sum comes last.
template <class V>
static void attend(const std::uint16_t* q, const std::uint16_t* k, const std::uint16_t* v,
                   std::int64_t stride, std::int64_t length, std::int64_t head_dim, float scale,
                   float* scratch, std::uint16_t* out) noexcept {
  float* weights = scratch;
  float* acc = scratch + length;  // [16, head_dim]; q as f32 before that
  for (std::int64_t i = 0; i < head_dim; ++i) acc[i] = decode_bf16(q[i]);
  attention_scores<V>(acc, k, stride, length, head_dim, scale, weights);
  float largest = -float_of(formats::kInfinityBits);
  bool nan = false;
  for (std::int64_t t = 0; t < length; ++t) {
    nan |= weights[t] != weights[t];
    largest = weights[t] > largest ? weights[t] : largest;
  }
  if (nan) largest = float_of(formats::kNanBits);
  for (std::int64_t t = 0; t < length; ++t) weights[t] = exp32(weights[t] - largest);
  float lanes[kLanes] = {};
  for (std::int64_t t = 0; t < length; ++t) lanes[t % kLanes] += weights[t];
  const float sum = tree(lanes);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= head_dim; i += 4 * kLanes) {
    weigh_values<V>(weights, v + i, stride, length, head_dim, acc + i);
  }
  for (; i < head_dim; ++i) weigh_column(weights, v + i, stride, length, head_dim, acc + i);
  for (int h = kLanes / 2; h >= 1; h /= 2) {
    for (std::int64_t j = 0; j < h * head_dim; ++j) acc[j] += acc[j + h * head_dim];
  }
  for (std::int64_t j = 0; j < head_dim; ++j) out[j] = store_bf16(acc[j] / sum);
}

template <class V>
static float exp_sum(const float* x, std::int64_t count, float* largest) noexcept {
  float most = -float_of(formats::kInfinityBits);
  for (std::int64_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
  *largest = most;
  constexpr std::int64_t kTogether = 256;
  float values[kTogether];
  auto acc = V::zero();
  std::int64_t whole = 0;
  for (; whole + kTogether <= count; whole += kTogether) {
    for (std::int64_t i = 0; i < kTogether; ++i) values[i] = exp32(x[whole + i] - most);
    for (std::int64_t i = 0; i < kTogether; i += kLanes) acc = V::add(acc, V::load(values + i));
  }
  float lanes[kLanes];
  V::store(lanes, acc);
  for (std::int64_t i = whole; i < count; ++i) lanes[i % kLanes] += exp32(x[i] - most);
  return tree(lanes);
}

template <class V>
static constexpr RowKernels row_kernels() {
  return {quantize_bf16, quantize_f32,   decode_e4m3fn_row, arrange,
          V::reduce,     store_bf16_row, store_f32_row,     rms_norm<V>,
          add,           glu_silu,       glu_silu_rounded,  glu_gpt_oss,
          rope,          attend<V>,      exp_sum<V>};
}

}  // namespace deepinfer::kernels::rows
