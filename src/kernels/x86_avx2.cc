// AVX2 + FMA kernels, lane = block: the 16 lanes are two groups of eight f32 lanes, worked on one
// after the other. Codes become bf16 bytes by table look-ups inside 16 bytes (vpshufb), bf16 pairs
// become two f32 vectors by a shift and a mask, and each pair is two fma, the odd element first.
#include <immintrin.h>

#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "kernels/cpu.h"
#include "kernels/isa_tables.h"
#include "kernels/order.h"
#include "kernels/roofs.h"
#include "kernels/rows.h"

namespace deepinfer::kernels {
namespace {

constexpr int kGroup = 8;  // lanes of a register; a superblock has two groups

// Inside a group the transposes leave block 2i + q in lane 4q + i.
constexpr std::uint8_t kLaneBlock[kLanes] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
constexpr std::uint8_t kLaneNatural[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
constexpr auto kOrderE4m3fn = split_order(Element::kE4m3fn, kLaneBlock);
constexpr auto kOrderE2m1 = split_order(Element::kE2m1, kLaneBlock);
constexpr auto kOrderBf16 = bf16_split_order();
constexpr Arrangement kArrangeE4m3fn = {kSuperblock, true, true, kOrderE4m3fn.index, kLaneBlock};
constexpr Arrangement kArrangeE2m1 = {kSuperblock, true, true, kOrderE2m1.index, kLaneBlock};
constexpr Arrangement kArrangeBf16 = {kBlock, true, false, kOrderBf16.index, kLaneNatural};

DEEPINFER_INLINE __m256i load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

DEEPINFER_INLINE __m256i table16(const std::uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

/// d = fma(w[hi], x[hi], d); d = fma(w[lo], x[lo], d). x: [hi][8], [lo][8].
DEEPINFER_INLINE __m256 fma_pairs(__m256 d, __m256i w, const float* x) {
  const __m256 hi = _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(-65536)));
  const __m256 lo = _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
  d = _mm256_fmadd_ps(hi, _mm256_loadu_ps(x), d);
  return _mm256_fmadd_ps(lo, _mm256_loadu_ps(x + kGroup), d);
}

/// Four registers of two 16-byte parts -> four registers of dwords: out[j] holds dword j of all
/// eight parts; part 2i + q (half q of in[i]) lands in lane 4q + i.
DEEPINFER_INLINE void transpose_dwords(const __m256i in[4], __m256i out[4]) {
  const __m256i lo01 = _mm256_unpacklo_epi32(in[0], in[1]);
  const __m256i hi01 = _mm256_unpackhi_epi32(in[0], in[1]);
  const __m256i lo23 = _mm256_unpacklo_epi32(in[2], in[3]);
  const __m256i hi23 = _mm256_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm256_unpacklo_epi64(lo01, lo23);
  out[1] = _mm256_unpackhi_epi64(lo01, lo23);
  out[2] = _mm256_unpacklo_epi64(hi01, hi23);
  out[3] = _mm256_unpackhi_epi64(hi01, hi23);
}

/// High and low bytes of bf16 -> words of the even bytes and of the odd bytes.
DEEPINFER_INLINE void join_bytes(__m256i high, __m256i low, __m256i* even, __m256i* odd) {
  const __m256i low_byte = _mm256_set1_epi16(0x00FF);
  *even = _mm256_or_si256(_mm256_and_si256(low, low_byte), _mm256_slli_epi16(high, 8));
  *odd = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(low_byte, high));
}

// ---- decoders: one group (8 blocks) of codes -> 16 registers of bf16 pairs, in step order ----

struct E4m3fn {
  static constexpr int kGroupBytes = 256;

  /// Codes with exponent > 0: bf16 = sign | (e + 120) << 7 | m << 4, so its high byte depends on
  /// the high nibble alone and its low byte is the low nibble << 4. Codes with exponent 0 take both
  /// bytes from tables of the low nibble; NaN is or-ed in.
  DEEPINFER_INLINE void decode_bytes(__m256i codes, __m256i out[2]) {
    alignas(16) static constexpr std::uint8_t kHigh[16] = {0x3C, 0x3D, 0x3E, 0x3F, 0x40, 0x41,
                                                           0x42, 0x43, 0xBC, 0xBD, 0xBE, 0xBF,
                                                           0xC0, 0xC1, 0xC2, 0xC3};
    // m * 2^-9 as bf16, m = 0..7: 0, 3B00, 3B80, 3BC0, 3C00, 3C20, 3C40, 3C60
    alignas(16) static constexpr std::uint8_t kSmallHigh[16] = {0x00, 0x3B, 0x3B, 0x3B,
                                                                0x3C, 0x3C, 0x3C, 0x3C};
    alignas(16) static constexpr std::uint8_t kSmallLow[16] = {0x00, 0x00, 0x80, 0xC0,
                                                               0x00, 0x20, 0x40, 0x60};
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    const __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi8(static_cast<char>(0x80)));
    const __m256i low_nibble = _mm256_and_si256(codes, nibble);
    const __m256i high_nibble = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
    __m256i high = _mm256_shuffle_epi8(table16(kHigh), high_nibble);
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(codes, 4), _mm256_set1_epi8(-16));
    const __m256i exponent = _mm256_and_si256(codes, _mm256_set1_epi8(0x78));
    const __m256i small = _mm256_cmpeq_epi8(exponent, _mm256_setzero_si256());
    const __m256i small_high =
        _mm256_or_si256(_mm256_shuffle_epi8(table16(kSmallHigh), low_nibble), sign);
    high = _mm256_blendv_epi8(high, small_high, small);
    low = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(table16(kSmallLow), low_nibble), small);
    const __m256i magnitude = _mm256_andnot_si256(sign, codes);
    const __m256i nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7F));
    high = _mm256_or_si256(high, _mm256_and_si256(nan, _mm256_set1_epi8(0x7F)));
    join_bytes(high, low, &out[0], &out[1]);
  }

  DEEPINFER_INLINE void decode(const std::uint8_t* p, __m256i out[kSteps]) {
    for (int half = 0; half < 2; ++half) {  // the two 16-byte halves of each block
      __m256i part[4];
      for (int i = 0; i < 4; ++i) {
        const __m256i a = load_bytes(p + 64 * i);
        const __m256i b = load_bytes(p + 64 * i + 32);
        part[i] = half == 0 ? _mm256_permute2x128_si256(a, b, 0x20)
                            : _mm256_permute2x128_si256(a, b, 0x31);
      }
      __m256i dwords[4];
      transpose_dwords(part, dwords);
      for (int j = 0; j < 4; ++j) decode_bytes(dwords[j], out + 8 * half + 2 * j);
    }
  }
};

struct E2m1 {
  static constexpr int kGroupBytes = 128;

  /// Low nibbles of bytes 0, 2 of a dword are step 4j, of bytes 1, 3 step 4j + 2; the high nibbles
  /// are the steps after them.
  DEEPINFER_INLINE void decode_nibbles(__m256i nibbles, __m256i* even, __m256i* odd) {
    alignas(16) static constexpr std::uint8_t kHigh[16] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40,
                                                           0x40, 0x40, 0x80, 0xBF, 0xBF, 0xBF,
                                                           0xC0, 0xC0, 0xC0, 0xC0};
    alignas(16) static constexpr std::uint8_t kLow[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40,
                                                          0x80, 0xC0, 0x00, 0x00, 0x80, 0xC0,
                                                          0x00, 0x40, 0x80, 0xC0};
    join_bytes(_mm256_shuffle_epi8(table16(kHigh), nibbles),
               _mm256_shuffle_epi8(table16(kLow), nibbles), even, odd);
  }

  DEEPINFER_INLINE void decode(const std::uint8_t* p, __m256i out[kSteps]) {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    __m256i part[4];
    for (int i = 0; i < 4; ++i) part[i] = load_bytes(p + 32 * i);
    __m256i dwords[4];
    transpose_dwords(part, dwords);
    for (int j = 0; j < 4; ++j) {
      const __m256i low = _mm256_and_si256(dwords[j], nibble);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(dwords[j], 4), nibble);
      decode_nibbles(low, &out[4 * j], &out[4 * j + 2]);
      decode_nibbles(high, &out[4 * j + 1], &out[4 * j + 3]);
    }
  }
};

// ---- scales of one group in lane order ----

struct E8m0Scales {
  DEEPINFER_INLINE __m256 load(const void* row, std::int64_t group, std::int64_t num_blocks) {
    const std::uint8_t* p = static_cast<const std::uint8_t*>(row) + group * kGroup;
    const std::int64_t left = num_blocks - group * kGroup;
    std::uint64_t bytes = 0;
    if (left >= kGroup) {
      __builtin_memcpy(&bytes, p, kGroup);
    } else {
      for (std::int64_t i = 0; i < left; ++i) bytes |= static_cast<std::uint64_t>(p[i]) << (8 * i);
    }
    const __m128i to_lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLaneBlock));
    const __m128i in_lanes =
        _mm_shuffle_epi8(_mm_cvtsi64_si128(static_cast<long long>(bytes)), to_lanes);
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtepu8_epi32(in_lanes), 23);
    // Byte 0 is 2^-127, byte 255 NaN: see formats/e8m0.h.
    const __m256i value = _mm256_max_epu32(exponent, _mm256_set1_epi32(formats::kE8m0ByteZeroBits));
    const __m256i is_nan = _mm256_cmpeq_epi32(value, _mm256_set1_epi32(formats::kInfinityBits));
    const __m256i quiet = _mm256_and_si256(is_nan, _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(value, quiet));
  }
};

struct F32Scales {
  DEEPINFER_INLINE __m256 load(const void* row, std::int64_t group, std::int64_t) {
    return _mm256_loadu_ps(static_cast<const float*>(row) + group * kGroup);
  }
};

// ---- loops ----

DEEPINFER_INLINE const float* row_of_x(const GemmArgs& a, std::int64_t row) {
  return reinterpret_cast<const float*>(static_cast<const char*>(a.x) + row * a.x_stride);
}

/// Lanes of a group back into block order.
DEEPINFER_INLINE __m256 in_block_order(__m256 lanes) {
  return _mm256_permutevar8x32_ps(lanes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/// The last group of a row may be short: its codes are copied in front of zeros, so that nothing
/// past the row is read.
template <class D>
DEEPINFER_INLINE const std::uint8_t* padded_tail(const std::uint8_t* w, std::int64_t left,
                                                 std::uint8_t* buffer) {
  for (int i = 0; i < D::kGroupBytes; ++i) buffer[i] = 0;
  if (left > 0) __builtin_memcpy(buffer, w, static_cast<unsigned long>(left));
  return buffer;
}

/// kM rows of x against one row of w, one group of lanes after the other.
template <class D, class S, int kM>
DEEPINFER_INLINE void gemv_row(const GemmArgs& a, std::int64_t row, std::int64_t col) {
  const std::int64_t num_superblocks = (a.k + kSuperblock - 1) / kSuperblock;
  const std::int64_t num_blocks = (a.k + kBlock - 1) / kBlock;
  const std::int64_t row_bytes = (a.k * D::kGroupBytes + 255) / 256;
  const std::uint8_t* w = a.w + col * a.w_stride;
  const void* scales = static_cast<const char*>(a.scales) + col * a.scale_stride;
  alignas(32) std::uint8_t tail[D::kGroupBytes];
  __m256 acc[kM][2];
  for (int i = 0; i < kM; ++i) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
  for (std::int64_t group = 0; group < 2 * num_superblocks; ++group) {
    const std::int64_t left = row_bytes - group * D::kGroupBytes;
    if (left <= 0) break;  // the rest of the superblock is padding
    const std::uint8_t* codes = w + group * D::kGroupBytes;
    if (left < D::kGroupBytes) codes = padded_tail<D>(codes, left, tail);
    __m256i decoded[kSteps];
    D::decode(codes, decoded);
    const __m256 scale = S::load(scales, group, num_blocks);
    for (int i = 0; i < kM; ++i) {
      const float* x = row_of_x(a, row + i) + group * kGroup * kBlock;
      __m256 d = _mm256_setzero_ps();
      for (int step = 0; step < kSteps; ++step) {
        d = fma_pairs(d, decoded[step], x + step * 2 * kGroup);
      }
      __m256& lanes = acc[i][group % 2];
      lanes = _mm256_fmadd_ps(d, scale, lanes);
    }
  }
  for (int i = 0; i < kM; ++i) {
    float* out = a.acc + ((row + i) * a.n + col) * kLanes;
    _mm256_storeu_ps(out, in_block_order(acc[i][0]));
    _mm256_storeu_ps(out + kGroup, in_block_order(acc[i][1]));
  }
}

template <class D, class S>
void gemm(const GemmArgs& a) noexcept {
  for (std::int64_t col = 0; col < a.n; ++col) {
    std::int64_t row = 0;
    for (; row + 4 <= a.m; row += 4) gemv_row<D, S, 4>(a, row, col);
    for (; row < a.m; ++row) gemv_row<D, S, 1>(a, row, col);
  }
}

/// bf16 weights under flush-to-zero. x: per 32 values [2 groups][hi, lo][8].
template <int kN>
DEEPINFER_INLINE void bf16_row(const GemmArgs& a, std::int64_t row, std::int64_t col) {
  __m256 acc[kN][2];
  for (int j = 0; j < kN; ++j) acc[j][0] = acc[j][1] = _mm256_setzero_ps();
  const float* x = row_of_x(a, row);
  for (std::int64_t k = 0; k < a.k; k += kBlock) {
    const std::int64_t left = a.k - k;
    for (int j = 0; j < kN; ++j) {
      const std::uint8_t* w = a.w + (col + j) * a.w_stride + 2 * k;
      alignas(32) std::uint8_t tail[2 * kBlock];
      if (left < kBlock) {
        for (int i = 0; i < 2 * kBlock; ++i) tail[i] = 0;
        __builtin_memcpy(tail, w, static_cast<unsigned long>(2 * left));
        w = tail;
      }
      for (int group = 0; group < 2; ++group) {
        acc[j][group] =
            fma_pairs(acc[j][group], load_bytes(w + 32 * group), x + k + 2 * kGroup * group);
      }
    }
  }
  for (int j = 0; j < kN; ++j) {
    float* out = a.acc + (row * a.n + col + j) * kLanes;
    _mm256_storeu_ps(out, acc[j][0]);
    _mm256_storeu_ps(out + kGroup, acc[j][1]);
  }
}

void gemm_bf16(const GemmArgs& a) noexcept {
  constexpr int kNr = 4;
  for (std::int64_t row = 0; row < a.m; ++row) {
    std::int64_t col = 0;
    for (; col + kNr <= a.n; col += kNr) bf16_row<kNr>(a, row, col);
    for (; col < a.n; ++col) bf16_row<1>(a, row, col);
  }
}

/// 16 lanes for rows.h.
struct Vector {
  struct Lanes {
    __m256 low;
    __m256 high;
  };
  DEEPINFER_INLINE __m256 widen(const std::uint16_t* p) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
  DEEPINFER_INLINE Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  DEEPINFER_INLINE Lanes load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + kGroup)};
  }
  DEEPINFER_INLINE Lanes load_bf16(const std::uint16_t* p) { return {widen(p), widen(p + kGroup)}; }
  DEEPINFER_INLINE Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  DEEPINFER_INLINE Lanes add(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  DEEPINFER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  DEEPINFER_INLINE void store(float* p, Lanes v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + kGroup, v.high);
  }

  static void reduce(const float* acc, std::int64_t count, float* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
      const float* lanes = acc + i * kLanes;
      const __m256 a8 = _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + kGroup));
      const __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
      const __m128 a2 = _mm_add_ps(a4, _mm_movehl_ps(a4, a4));
      y[i] = _mm_cvtss_f32(_mm_add_ss(a2, _mm_movehdup_ps(a2)));
    }
  }
};

constexpr RowKernels kRows = rows::row_kernels<Vector>();

/// The roof: vfmadd231ps, 8 multiply-adds.
struct RoofFma {
  using Register = __m256;
  static constexpr std::int64_t kFlops = 16;
  DEEPINFER_INLINE __m256 zero() { return _mm256_setzero_ps(); }
  DEEPINFER_INLINE __m256 step(__m256 acc) {
    const __m256 half = _mm256_set1_ps(0.5F);
    return _mm256_fmadd_ps(half, half, acc);
  }
  DEEPINFER_INLINE float sum(__m256 acc) {
    float lanes[kGroup];
    _mm256_storeu_ps(lanes, acc);
    float total = 0.0F;
    for (int i = 0; i < kGroup; ++i) total += lanes[i];
    return total;
  }
};

constexpr RoofKernels kRoofs = {roofs::read, roofs::multiply_add<RoofFma>};

using enum ArithmeticClass;

constexpr Kernel kKernels[] = {
    {"gemm_bf16_bf16_1x4_avx2", Isa::kAvx2, Element::kBf16, Scales::kNone, kBf16Pairs,
     FpState::kFlush, 0, 1, 4, 2, &kArrangeBf16, gemm_bf16},
    {"gemm_fp8_bf16_4x1_avx2", Isa::kAvx2, Element::kE4m3fn, Scales::kF32, kE4m3Blocks,
     FpState::kIeee, 0, 4, 1, 2, &kArrangeE4m3fn, gemm<E4m3fn, F32Scales>},
    {"gemm_mxfp8_bf16_4x1_avx2", Isa::kAvx2, Element::kE4m3fn, Scales::kE8m0, kE4m3Blocks,
     FpState::kIeee, 0, 4, 1, 2, &kArrangeE4m3fn, gemm<E4m3fn, E8m0Scales>},
    {"gemm_fp4_bf16_4x1_avx2", Isa::kAvx2, Element::kE2m1, Scales::kF32, kE2m1Blocks,
     FpState::kIeee, 0, 4, 1, 2, &kArrangeE2m1, gemm<E2m1, F32Scales>},
    {"gemm_mxfp4_bf16_4x1_avx2", Isa::kAvx2, Element::kE2m1, Scales::kE8m0, kE2m1Blocks,
     FpState::kIeee, 0, 4, 1, 2, &kArrangeE2m1, gemm<E2m1, E8m0Scales>},
};

}  // namespace

const IsaTable kAvx2Table = {
    Isa::kAvx2, "avx2", kCpuAvx2, kKernels, sizeof(kKernels) / sizeof(kKernels[0]),
    &kRows,     &kRoofs};

}  // namespace deepinfer::kernels
