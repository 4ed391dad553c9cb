// The reference kernels: portable scalar C++ that defines the bits (docs/determinism.md).
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "kernels/isa_tables.h"
#include "kernels/math.h"
#include "kernels/order.h"
#include "kernels/roofs.h"
#include "kernels/rows.h"

namespace deepinfer::kernels {
namespace {

constexpr std::uint8_t kLaneBlock[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
constexpr auto kNatural512 = natural_order<kSuperblock>();
constexpr auto kNatural32 = natural_order<kBlock>();
constexpr Arrangement kCodes = {kSuperblock, false, true, kNatural512.index, kLaneBlock};
constexpr Arrangement kBf16 = {kBlock, false, false, kNatural32.index, kLaneBlock};

struct E4m3fn {
  static constexpr Element kElement = Element::kE4m3fn;
  static float decode(const std::uint8_t* row, std::int64_t k) {
    return formats::decode_e4m3fn(row[k]);
  }
};

struct E2m1 {
  static constexpr Element kElement = Element::kE2m1;
  static float decode(const std::uint8_t* row, std::int64_t k) {
    return formats::decode_e2m1((row[k / 2] >> (4 * (k % 2))) & 15U);
  }
};

float scale_of_block(const void* scales, Scales kind, std::int64_t block) {
  if (kind == Scales::kE8m0) {
    return formats::decode_e8m0(static_cast<const std::uint8_t*>(scales)[block]);
  }
  return static_cast<const float*>(scales)[block];
}

/// d_b: the chain over the 16 pairs of one block; codes past k are zero.
template <class Format>
float block_sum(const std::uint8_t* w, const std::uint16_t* x, std::int64_t begin, std::int64_t k) {
  float d = 0.0F;
  for (int step = 0; step < kSteps; ++step) {
    const Pair pair = block_pair(Format::kElement, step);
    const int second_first[2] = {pair.hi, pair.lo};
    for (const int offset : second_first) {
      const std::int64_t at = begin + offset;
      const float code = at < k ? Format::decode(w, at) : 0.0F;
      d = fma32(code, formats::decode_bf16(x[at]), d);
    }
  }
  return d;
}

template <class Format, Scales kScales>
void gemm_blocks(const GemmArgs& a) noexcept {
  for (std::int64_t row = 0; row < a.m; ++row) {
    const auto* x =
        reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(a.x) + row * a.x_stride);
    for (std::int64_t col = 0; col < a.n; ++col) {
      const std::uint8_t* w = a.w + col * a.w_stride;
      const void* scales = static_cast<const char*>(a.scales) + col * a.scale_stride;
      float* lanes = a.acc + (row * a.n + col) * kLanes;
      for (int l = 0; l < kLanes; ++l) lanes[l] = 0.0F;
      for (std::int64_t begin = 0; begin < a.k; begin += kBlock) {
        const std::int64_t block = begin / kBlock;
        const float d = block_sum<Format>(w, x, begin, a.k);
        float& lane = lanes[block % kLanes];
        lane = fma32(d, scale_of_block(scales, kScales, block), lane);
      }
    }
  }
}

float zero_if_subnormal(float v) {
  const std::uint32_t u = formats::bits_of(v);
  return (u & formats::kInfinityBits) == 0 ? formats::float_of(u & formats::kSignBit) : v;
}

/// a * b + c as x86 computes it with FTZ and DAZ: the result becomes a zero of its sign when the
/// exact value, rounded to 24 bits with unbounded exponent, is below 2^-126. Subnormal rounding can
/// lift such a value to exactly 2^-126; there the fma is repeated 2^64 higher, where 24 bits fit.
float fma_flushed(float a, float b, float c) {
  const float r = fma32(a, b, c);
  const float magnitude = formats::float_of(formats::bits_of(r) & formats::kMagnitudeBits);
  if (magnitude == 0x1p-126F) {
    const bool a_smaller = __builtin_fabsf(a) < __builtin_fabsf(b);
    const float small = (a_smaller ? a : b) * 0x1p64F;
    const float high = fma32(small, a_smaller ? b : a, c * 0x1p64F);
    if (__builtin_fabsf(high) < 0x1p-62F) return __builtin_copysignf(0.0F, r);
    return r;
  }
  return zero_if_subnormal(r);
}

void gemm_bf16(const GemmArgs& a) noexcept {
  for (std::int64_t row = 0; row < a.m; ++row) {
    const auto* x =
        reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(a.x) + row * a.x_stride);
    for (std::int64_t col = 0; col < a.n; ++col) {
      const std::uint8_t* w = a.w + col * a.w_stride;
      float* lanes = a.acc + (row * a.n + col) * kLanes;
      for (int l = 0; l < kLanes; ++l) lanes[l] = 0.0F;
      for (std::int64_t begin = 0; begin < a.k; begin += kBlock) {
        for (int l = 0; l < kLanes; ++l) {
          constexpr int kOddFirst[2] = {1, 0};
          for (const int offset : kOddFirst) {
            const std::int64_t at = begin + 2 * l + offset;
            std::uint16_t code = 0;
            if (at < a.k) __builtin_memcpy(&code, w + 2 * at, sizeof(code));
            lanes[l] = fma_flushed(zero_if_subnormal(formats::decode_bf16(code)),
                                   zero_if_subnormal(formats::decode_bf16(x[at])), lanes[l]);
          }
        }
      }
    }
  }
}

/// The roof of scalar code: one multiply-add a step.
struct RoofFma {
  using Register = float;
  static constexpr std::int64_t kFlops = 2;
  DEEPINFER_INLINE float zero() { return 0.0F; }
  DEEPINFER_INLINE float step(float acc) { return fma32(0.5F, 0.5F, acc); }
  DEEPINFER_INLINE float sum(float acc) { return acc; }
};

constexpr RoofKernels kRoofs = {roofs::read, roofs::multiply_add<RoofFma>};

/// 16 lanes for rows.h.
struct Vector {
  struct Lanes {
    float lane[kLanes];
  };
  static Lanes zero() { return {}; }
  static Lanes load(const float* p) {
    Lanes v;
    for (int l = 0; l < kLanes; ++l) v.lane[l] = p[l];
    return v;
  }
  static Lanes load_bf16(const std::uint16_t* p) {
    Lanes v;
    for (int l = 0; l < kLanes; ++l) v.lane[l] = formats::decode_bf16(p[l]);
    return v;
  }
  static Lanes broadcast(float x) {
    Lanes v;
    for (float& lane : v.lane) lane = x;
    return v;
  }
  static Lanes add(Lanes a, const Lanes& b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] += b.lane[l];
    return a;
  }
  static Lanes fma(const Lanes& a, const Lanes& b, Lanes c) {
    for (int l = 0; l < kLanes; ++l) c.lane[l] = fma32(a.lane[l], b.lane[l], c.lane[l]);
    return c;
  }
  static void store(float* p, const Lanes& v) {
    for (int l = 0; l < kLanes; ++l) p[l] = v.lane[l];
  }
  static void reduce(const float* acc, std::int64_t count, float* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) y[i] = rows::tree(acc + i * kLanes);
  }
};

constexpr RowKernels kRows = rows::row_kernels<Vector>();

using enum ArithmeticClass;

constexpr Kernel kKernels[] = {
    {"gemm_bf16_bf16_1x1_ref", Isa::kRef, Element::kBf16, Scales::kNone, kBf16Pairs, FpState::kIeee,
     0, 1, 1, 2, &kBf16, gemm_bf16},
    {"gemm_fp8_bf16_1x1_ref", Isa::kRef, Element::kE4m3fn, Scales::kF32, kE4m3Blocks,
     FpState::kIeee, 0, 1, 1, 2, &kCodes, gemm_blocks<E4m3fn, Scales::kF32>},
    {"gemm_mxfp8_bf16_1x1_ref", Isa::kRef, Element::kE4m3fn, Scales::kE8m0, kE4m3Blocks,
     FpState::kIeee, 0, 1, 1, 2, &kCodes, gemm_blocks<E4m3fn, Scales::kE8m0>},
    {"gemm_fp4_bf16_1x1_ref", Isa::kRef, Element::kE2m1, Scales::kF32, kE2m1Blocks, FpState::kIeee,
     0, 1, 1, 2, &kCodes, gemm_blocks<E2m1, Scales::kF32>},
    {"gemm_mxfp4_bf16_1x1_ref", Isa::kRef, Element::kE2m1, Scales::kE8m0, kE2m1Blocks,
     FpState::kIeee, 0, 1, 1, 2, &kCodes, gemm_blocks<E2m1, Scales::kE8m0>},
};

}  // namespace

const IsaTable kRefTable = {Isa::kRef, "ref",  0, kKernels, sizeof(kKernels) / sizeof(kKernels[0]),
                            &kRows,    &kRoofs};

}  // namespace deepinfer::kernels
