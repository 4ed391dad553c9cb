// AVX-512 kernels on vdpbf16ps, lane = block: each of 16 lanes of a register owns whole scale
// blocks, so a scale costs one fma per 16 blocks and no horizontal step happens inside k.
//
// vdpbf16ps adds the odd element first and flushes subnormals whatever MXCSR says; that is the
// order and, together with the 2^-100 rule for activations, the arithmetic of ref.cc.
#include <immintrin.h>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "kernels/cpu.h"
#include "kernels/isa_tables.h"
#include "kernels/order.h"
#include "kernels/roofs.h"
#include "kernels/rows.h"

namespace deepinfer::kernels {
namespace {

// The transposes below leave block 4i + q in lane 4q + i.
constexpr std::uint8_t kLaneBlock[kLanes] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
constexpr std::uint8_t kLaneNatural[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
constexpr auto kOrderE4m3fn = pair_order(Element::kE4m3fn, kLaneBlock);
constexpr auto kOrderE2m1 = pair_order(Element::kE2m1, kLaneBlock);
constexpr auto kNatural32 = natural_order<kBlock>();
constexpr Arrangement kArrangeE4m3fn = {kSuperblock, false, true, kOrderE4m3fn.index, kLaneBlock};
constexpr Arrangement kArrangeE2m1 = {kSuperblock, false, true, kOrderE2m1.index, kLaneBlock};
constexpr Arrangement kArrangeBf16 = {kBlock, false, false, kNatural32.index, kLaneNatural};

DEEPINFER_INLINE __m512i load_bytes(const void* p) { return _mm512_loadu_si512(p); }

DEEPINFER_INLINE __m512 fma_pairs(__m512 acc, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

/// Four registers of four 16-byte parts -> four registers of dwords: out[j] holds dword j of all
/// 16 parts; part 4i + q (lane q of in[i]) lands in lane 4q + i.
DEEPINFER_INLINE void transpose_dwords(const __m512i in[4], __m512i out[4]) {
  const __m512i lo01 = _mm512_unpacklo_epi32(in[0], in[1]);
  const __m512i hi01 = _mm512_unpackhi_epi32(in[0], in[1]);
  const __m512i lo23 = _mm512_unpacklo_epi32(in[2], in[3]);
  const __m512i hi23 = _mm512_unpackhi_epi32(in[2], in[3]);
  out[0] = _mm512_unpacklo_epi64(lo01, lo23);
  out[1] = _mm512_unpackhi_epi64(lo01, lo23);
  out[2] = _mm512_unpacklo_epi64(hi01, hi23);
  out[3] = _mm512_unpackhi_epi64(hi01, hi23);
}

// ---- decoders: one superblock of codes -> 16 registers of bf16 pairs, handed to `use` in step
// order as soon as each is made, so that few are alive at a time ----

/// bf16 of the 128 magnitudes, split into high and low bytes for vpermi2b.
struct ByteTables {
  alignas(64) std::uint8_t high[128];
  alignas(64) std::uint8_t low[128];
};
constexpr ByteTables magnitude_tables() {
  ByteTables t = {};
  for (int code = 0; code < 128; ++code) {
    std::uint16_t bf16 = 0;
    if (code == formats::kE4m3fnNan) {
      bf16 = formats::kBf16Nan;
    } else if (code >= 8) {
      bf16 = static_cast<std::uint16_t>((code << 4) + (120 << 7));
    } else if (code > 0) {  // code * 2^-9 = (code / 2^e) * 2^(e - 9) with 2^e <= code
      const int e = code >= 4 ? 2 : code >= 2 ? 1 : 0;
      bf16 = static_cast<std::uint16_t>(((118 + e) << 7) | ((code << (7 - e)) & 0x7F));
    }
    t.high[code] = static_cast<std::uint8_t>(bf16 >> 8);
    t.low[code] = static_cast<std::uint8_t>(bf16 & 0xFF);
  }
  return t;
}

struct E4m3fn {
  static constexpr int kBytes = 512;

  static constexpr ByteTables kTables = magnitude_tables();

  /// Bytes 0, 2 of every dword make the first register, bytes 1, 3 the second.
  DEEPINFER_INLINE void decode_bytes(__m512i codes, __m512i out[2]) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i h =
        _mm512_permutex2var_epi8(load_bytes(kTables.high), codes, load_bytes(kTables.high + 64));
    const __m512i low =
        _mm512_permutex2var_epi8(load_bytes(kTables.low), codes, load_bytes(kTables.low + 64));
    const __m512i high = _mm512_ternarylogic_epi32(h, codes, sign, 0xF8);  // h | (codes & sign)
    const __mmask64 odd = 0xAAAAAAAAAAAAAAAAULL;
    out[0] = _mm512_mask_blend_epi8(odd, low, _mm512_slli_epi16(high, 8));
    out[1] = _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(low, 8), high);
  }

  template <class Use>
  DEEPINFER_INLINE void decode(const std::uint8_t* p, const Use& use) {
    for (int half = 0; half < 2; ++half) {  // the two 16-byte halves of each block
      __m512i part[4];
      for (int i = 0; i < 4; ++i) {
        const __m512i a = load_bytes(p + 128 * i);
        const __m512i b = load_bytes(p + 128 * i + 64);
        part[i] = half == 0 ? _mm512_shuffle_i64x2(a, b, 0x88) : _mm512_shuffle_i64x2(a, b, 0xDD);
      }
      __m512i dwords[4];
      transpose_dwords(part, dwords);
      for (int j = 0; j < 4; ++j) {
        __m512i pair[2];
        decode_bytes(dwords[j], pair);
        use(8 * half + 2 * j, pair[0]);
        use(8 * half + 2 * j + 1, pair[1]);
      }
    }
  }
};

/// bf16 of the 16 codes, twice: vpermw looks at five bits, the fifth belongs to the next code.
struct WordTable {
  alignas(64) std::uint16_t bf16[32];
};
constexpr WordTable code_table() {
  constexpr std::uint16_t kValues[8] = {0x0000, 0x3F00, 0x3F80, 0x3FC0,
                                        0x4000, 0x4040, 0x4080, 0x40C0};
  WordTable t = {};
  for (int i = 0; i < 32; ++i) {
    t.bf16[i] = static_cast<std::uint16_t>(kValues[i % 8] | ((i & 8) != 0 ? 0x8000 : 0));
  }
  return t;
}

struct E2m1 {
  static constexpr int kBytes = 256;

  static constexpr WordTable kTable = code_table();

  template <class Use>
  DEEPINFER_INLINE void decode(const std::uint8_t* p, const Use& use) {
    const __m512i table = load_bytes(kTable.bf16);
    __m512i part[4];
    for (int i = 0; i < 4; ++i) part[i] = load_bytes(p + 64 * i);
    __m512i dwords[4];
    transpose_dwords(part, dwords);
    for (int j = 0; j < 4; ++j) {
      const __m512i d = dwords[j];
      use(4 * j, _mm512_permutexvar_epi16(d, table));
      use(4 * j + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(d, 4), table));
      use(4 * j + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(d, 8), table));
      use(4 * j + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(d, 12), table));
    }
  }
};

// ---- scales of one superblock in lane order ----

struct E8m0Scales {
  DEEPINFER_INLINE __m512 load(const void* row, std::int64_t superblock, std::int64_t num_blocks) {
    const std::uint8_t* p = static_cast<const std::uint8_t*>(row) + superblock * kLanes;
    const std::int64_t left = num_blocks - superblock * kLanes;
    const __mmask16 valid = left >= kLanes ? 0xFFFF : static_cast<__mmask16>((1U << left) - 1U);
    const __m128i to_lanes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kLaneBlock));
    const __m128i bytes = _mm_shuffle_epi8(_mm_maskz_loadu_epi8(valid, p), to_lanes);
    const __m512i exponent = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    // Byte 0 is 2^-127, byte 255 NaN: see formats/e8m0.h.
    const __m512i at_least = _mm512_set1_epi32(formats::kE8m0ByteZeroBits);
    const __m512i nan = _mm512_set1_epi32(formats::kInfinityBits);
    const __m512i value = _mm512_max_epu32(exponent, at_least);
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(value, nan);
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(value, is_nan, _mm512_set1_epi32(formats::kNanBits)));
  }
};

struct F32Scales {
  DEEPINFER_INLINE __m512 load(const void* row, std::int64_t superblock, std::int64_t) {
    return _mm512_loadu_ps(static_cast<const float*>(row) + superblock * kLanes);
  }
};

// ---- loops ----

DEEPINFER_INLINE const char* row_of_x(const GemmArgs& a, std::int64_t row) {
  return static_cast<const char*>(a.x) + row * a.x_stride;
}

DEEPINFER_INLINE const void* row_of_scales(const GemmArgs& a, std::int64_t col) {
  return static_cast<const char*>(a.scales) + col * a.scale_stride;
}

/// Lanes back into block order.
DEEPINFER_INLINE __m512 in_block_order(__m512 lanes) {
  const __m512i lane_of_block =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(lane_of_block, lanes);
}

/// The last superblock of a row may be short: its codes are copied behind zeros, so that nothing
/// past the row is read.
template <class D>
DEEPINFER_INLINE const std::uint8_t* padded_tail(const std::uint8_t* w, std::int64_t superblock,
                                                 std::int64_t row_bytes, std::uint8_t* buffer) {
  const std::int64_t begin = superblock * D::kBytes;
  for (int i = 0; i < D::kBytes; i += 64) {
    const std::int64_t left = row_bytes - begin - i;
    const __mmask64 valid = left >= 64  ? ~0ULL
                            : left <= 0 ? 0
                                        : (1ULL << static_cast<unsigned>(left)) - 1ULL;
    _mm512_store_si512(buffer + i, _mm512_maskz_loadu_epi8(valid, w + begin + i));
  }
  return buffer;
}

template <class D>
DEEPINFER_INLINE std::int64_t bytes_of_row(std::int64_t k) {
  return (k * D::kBytes + kSuperblock - 1) / kSuperblock;
}

/// kM rows of x against kN rows of w: codes are decoded in registers and used at once. Two rows of
/// w make twice as many independent chains of 16 dependent vdpbf16ps.
template <class D, class S, int kM, int kN>
DEEPINFER_INLINE void gemv_tile(const GemmArgs& a, std::int64_t col) {
  const std::int64_t num_superblocks = (a.k + kSuperblock - 1) / kSuperblock;
  const std::int64_t num_blocks = (a.k + kBlock - 1) / kBlock;
  const std::int64_t row_bytes = bytes_of_row<D>(a.k);
  const std::uint8_t* w = a.w + col * a.w_stride;
  alignas(64) std::uint8_t tail[D::kBytes];
  const char* x[kM];
  for (int i = 0; i < kM; ++i) x[i] = row_of_x(a, i);
  __m512 acc[kM][kN];
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  for (std::int64_t s = 0; s < num_superblocks; ++s) {
    const bool whole = (s + 1) * D::kBytes <= row_bytes;
    for (int j = 0; j < kN; ++j) {
      const std::uint8_t* row = w + j * a.w_stride;
      const std::uint8_t* codes = row + s * D::kBytes;
      if (!whole) codes = padded_tail<D>(row, s, row_bytes, tail);
      for (int line = 0; line < D::kBytes; line += 64) {  // the rows that come next
        _mm_prefetch(reinterpret_cast<const char*>(codes + line + kN * a.w_stride), _MM_HINT_T0);
      }
      __m512 d[kM];
      for (int i = 0; i < kM; ++i) d[i] = _mm512_setzero_ps();
      D::decode(
          codes, [&](int step, __m512i pairs) __attribute__((always_inline)) {
            for (int i = 0; i < kM; ++i) {
              d[i] = fma_pairs(d[i], pairs, load_bytes(x[i] + s * kSuperblock * 2 + 64 * step));
            }
          });
      const __m512 scale = S::load(row_of_scales(a, col + j), s, num_blocks);
      for (int i = 0; i < kM; ++i) acc[i][j] = _mm512_fmadd_ps(d[i], scale, acc[i][j]);
    }
  }
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) {
      _mm512_storeu_ps(a.acc + (i * a.n + col + j) * kLanes, in_block_order(acc[i][j]));
    }
  }
}

template <class D, class S, int kM, int kN>
__attribute__((noinline)) void gemv_rows(const GemmArgs& a) {
  std::int64_t col = 0;
  for (; col + kN <= a.n; col += kN) gemv_tile<D, S, kM, kN>(a, col);
  for (; col < a.n; ++col) gemv_tile<D, S, kM, 1>(a, col);
}

template <class D, class S>
void gemv(const GemmArgs& a) noexcept {
  switch (a.m) {
    case 1:
      return gemv_rows<D, S, 1, 2>(a);
    case 2:
      return gemv_rows<D, S, 2, 2>(a);
    case 3:
      return gemv_rows<D, S, 3, 1>(a);
    default:
      return gemv_rows<D, S, 4, 1>(a);
  }
}

constexpr int kMr = 4;
constexpr int kNr = 4;

/// A kM x kN tile over one superblock: block sums in registers, then one fma each with the scale
/// into the accumulators, which stay in L1.
template <int kM, int kN>
DEEPINFER_INLINE void tile(const char* const x[kM], const std::uint8_t* w, const __m512* scales,
                           float* const acc[kM]) {
  __m512 d[kM][kN];
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) d[i][j] = _mm512_setzero_ps();
  }
  for (int step = 0; step < kSteps; ++step) {
    __m512i wj[kN];
    for (int j = 0; j < kN; ++j) wj[j] = load_bytes(w + j * 1024 + step * 64);
    for (int i = 0; i < kM; ++i) {
      const __m512i xi = load_bytes(x[i] + step * 64);
      for (int j = 0; j < kN; ++j) d[i][j] = fma_pairs(d[i][j], wj[j], xi);
    }
  }
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) {
      float* lanes = acc[i] + j * kLanes;
      _mm512_storeu_ps(lanes, _mm512_fmadd_ps(d[i][j], scales[j], _mm512_loadu_ps(lanes)));
    }
  }
}

template <int kM, int kN>
DEEPINFER_INLINE void tile_rows(const GemmArgs& a, std::int64_t row, std::int64_t col,
                                std::int64_t superblock, const std::uint8_t* w,
                                const __m512* scales) {
  const char* x[kM];
  float* acc[kM];
  for (int i = 0; i < kM; ++i) {
    x[i] = row_of_x(a, row + i) + superblock * kSuperblock * 2;
    acc[i] = a.acc + ((row + i) * a.n + col) * kLanes;
  }
  tile<kM, kN>(x, w, scales, acc);
}

/// kN rows of w against all m rows of x: each superblock is decoded once into L1.
template <class D, class S, int kN>
DEEPINFER_INLINE void gemm_columns(const GemmArgs& a, std::int64_t col) {
  const std::int64_t num_superblocks = (a.k + kSuperblock - 1) / kSuperblock;
  const std::int64_t num_blocks = (a.k + kBlock - 1) / kBlock;
  const std::int64_t row_bytes = bytes_of_row<D>(a.k);
  alignas(64) std::uint8_t decoded[kN * 1024];
  alignas(64) std::uint8_t tail[D::kBytes];
  for (std::int64_t s = 0; s < num_superblocks; ++s) {
    __m512 scales[kN];
    for (int j = 0; j < kN; ++j) {
      const std::uint8_t* w = a.w + (col + j) * a.w_stride;
      const std::uint8_t* codes = w + s * D::kBytes;
      if ((s + 1) * D::kBytes > row_bytes) codes = padded_tail<D>(w, s, row_bytes, tail);
      D::decode(
          codes, [&](int step, __m512i pairs) __attribute__((always_inline)) {
            _mm512_store_si512(decoded + j * 1024 + step * 64, pairs);
          });
      scales[j] = S::load(row_of_scales(a, col + j), s, num_blocks);
    }
    std::int64_t row = 0;
    for (; row + kMr <= a.m; row += kMr) tile_rows<kMr, kN>(a, row, col, s, decoded, scales);
    for (; row < a.m; ++row) tile_rows<1, kN>(a, row, col, s, decoded, scales);
  }
}

template <class D, class S>
void gemm(const GemmArgs& a) noexcept {
  for (std::int64_t i = 0; i < a.m * a.n; ++i) {
    _mm512_storeu_ps(a.acc + i * kLanes, _mm512_setzero_ps());
  }
  std::int64_t col = 0;
  for (; col + kNr <= a.n; col += kNr) gemm_columns<D, S, kNr>(a, col);
  for (; col < a.n; ++col) gemm_columns<D, S, 1>(a, col);
  for (std::int64_t i = 0; i < a.m * a.n; ++i) {
    float* lanes = a.acc + i * kLanes;
    _mm512_storeu_ps(lanes, in_block_order(_mm512_loadu_ps(lanes)));
  }
}

/// bf16 weights: the lane takes the pair under it, no order to restore.
template <int kM, int kN>
DEEPINFER_INLINE void bf16_tile(const GemmArgs& a, std::int64_t row, std::int64_t col) {
  __m512 acc[kM][kN];
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) acc[i][j] = _mm512_setzero_ps();
  }
  const std::uint8_t* w = a.w + col * a.w_stride;
  const std::int64_t whole = a.k / kBlock * kBlock;
  for (std::int64_t k = 0; k < a.k; k += kBlock) {
    const __mmask32 valid = k < whole ? ~0U : (1U << static_cast<unsigned>(a.k - whole)) - 1U;
    __m512i wj[kN];
    for (int j = 0; j < kN; ++j) {
      wj[j] = _mm512_maskz_loadu_epi16(valid, w + j * a.w_stride + 2 * k);
    }
    for (int i = 0; i < kM; ++i) {
      const __m512i xi = load_bytes(row_of_x(a, row + i) + 2 * k);
      for (int j = 0; j < kN; ++j) acc[i][j] = fma_pairs(acc[i][j], wj[j], xi);
    }
  }
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) {
      _mm512_storeu_ps(a.acc + ((row + i) * a.n + col + j) * kLanes, acc[i][j]);
    }
  }
}

template <int kM, int kN>
DEEPINFER_INLINE void bf16_columns(const GemmArgs& a, std::int64_t row) {
  std::int64_t col = 0;
  for (; col + kN <= a.n; col += kN) bf16_tile<kM, kN>(a, row, col);
  for (; col < a.n; ++col) bf16_tile<kM, 1>(a, row, col);
}

void gemm_bf16(const GemmArgs& a) noexcept {
  std::int64_t row = 0;
  for (; row + kMr <= a.m; row += kMr) bf16_columns<kMr, kNr>(a, row);
  for (; row < a.m; ++row) bf16_columns<1, 2 * kNr>(a, row);
}

/// 16 lanes for rows.h.
struct Vector {
  using Lanes = __m512;
  DEEPINFER_INLINE Lanes zero() { return _mm512_setzero_ps(); }
  DEEPINFER_INLINE Lanes load(const float* p) { return _mm512_loadu_ps(p); }
  DEEPINFER_INLINE Lanes load_bf16(const std::uint16_t* p) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  DEEPINFER_INLINE Lanes broadcast(float x) { return _mm512_set1_ps(x); }
  DEEPINFER_INLINE Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
  DEEPINFER_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
  DEEPINFER_INLINE void store(float* p, Lanes v) { _mm512_storeu_ps(p, v); }

  static void reduce(const float* acc, std::int64_t count, float* y) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
      const __m512 a = _mm512_loadu_ps(acc + i * kLanes);
      const __m256 a8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
      const __m128 a4 = _mm_add_ps(_mm256_castps256_ps128(a8), _mm256_extractf128_ps(a8, 1));
      const __m128 a2 = _mm_add_ps(a4, _mm_movehl_ps(a4, a4));
      y[i] = _mm_cvtss_f32(_mm_add_ss(a2, _mm_movehdup_ps(a2)));
    }
  }
};

constexpr RowKernels kRows = rows::row_kernels<Vector>();

/// The roof: vdpbf16ps, 32 multiply-adds.
struct RoofFma {
  using Register = __m512;
  static constexpr std::int64_t kFlops = 64;
  DEEPINFER_INLINE __m512 zero() { return _mm512_setzero_ps(); }
  DEEPINFER_INLINE __m512 step(__m512 acc) {
    const __m512i half = _mm512_set1_epi16(0x3F00);
    return fma_pairs(acc, half, half);
  }
  DEEPINFER_INLINE float sum(__m512 acc) {
    float lanes[kLanes];
    _mm512_storeu_ps(lanes, acc);
    float total = 0.0F;
    for (int i = 0; i < kLanes; ++i) total += lanes[i];
    return total;
  }
};

constexpr RoofKernels kRoofs = {roofs::read, roofs::multiply_add<RoofFma>};

using enum ArithmeticClass;

constexpr Kernel code_kernel(const char* name, Element element, Scales scales,
                             void (*run)(const GemmArgs&) noexcept, bool gemv_only) {
  const bool fp8 = element == Element::kE4m3fn;
  return {.name = name,
          .isa = Isa::kAvx512bf16,
          .element = element,
          .scales = scales,
          .arithmetic = fp8 ? kE4m3Blocks : kE2m1Blocks,
          .fp_state = FpState::kIeee,
          .max_m = gemv_only ? 4 : 0,
          .mr = kMr,
          .nr = gemv_only ? 2 : kNr,
          .kr = 2,
          .arrangement = fp8 ? &kArrangeE4m3fn : &kArrangeE2m1,
          .run = run};
}

constexpr Kernel kKernels[] = {
    {"gemm_bf16_bf16_4x4_avx512bf16", Isa::kAvx512bf16, Element::kBf16, Scales::kNone, kBf16Pairs,
     FpState::kIeee, 0, kMr, kNr, 2, &kArrangeBf16, gemm_bf16},
    code_kernel("gemv_fp8_bf16_4x2_avx512bf16", Element::kE4m3fn, Scales::kF32,
                gemv<E4m3fn, F32Scales>, true),
    code_kernel("gemm_fp8_bf16_4x4_avx512bf16", Element::kE4m3fn, Scales::kF32,
                gemm<E4m3fn, F32Scales>, false),
    code_kernel("gemv_mxfp8_bf16_4x2_avx512bf16", Element::kE4m3fn, Scales::kE8m0,
                gemv<E4m3fn, E8m0Scales>, true),
    code_kernel("gemm_mxfp8_bf16_4x4_avx512bf16", Element::kE4m3fn, Scales::kE8m0,
                gemm<E4m3fn, E8m0Scales>, false),
    code_kernel("gemv_fp4_bf16_4x2_avx512bf16", Element::kE2m1, Scales::kF32, gemv<E2m1, F32Scales>,
                true),
    code_kernel("gemm_fp4_bf16_4x4_avx512bf16", Element::kE2m1, Scales::kF32, gemm<E2m1, F32Scales>,
                false),
    code_kernel("gemv_mxfp4_bf16_4x2_avx512bf16", Element::kE2m1, Scales::kE8m0,
                gemv<E2m1, E8m0Scales>, true),
    code_kernel("gemm_mxfp4_bf16_4x4_avx512bf16", Element::kE2m1, Scales::kE8m0,
                gemm<E2m1, E8m0Scales>, false),
};

}  // namespace

const IsaTable kAvx512Table = {Isa::kAvx512bf16,
                               "avx512bf16",
                               kCpuAvx512bf16,
                               kKernels,
                               sizeof(kKernels) / sizeof(kKernels[0]),
                               &kRows,
                               &kRoofs};

}  // namespace deepinfer::kernels
