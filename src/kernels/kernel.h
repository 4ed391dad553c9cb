// The contract between kernels and the rest: what a kernel is, what it is given, what it writes.
//
// A kernel computes, for m rows of x and n rows of w over the whole of k, the 16 partial sums
// ("lanes") of every output in the order of docs/determinism.md. The caller reduces the lanes,
// adds bias and stores. Kernels never allocate, lock, thread or fail.
//
// This header is seen by files that are compiled for one instruction set: only constants, plain
// structs and always-inline functions may stand here (see formats/bits.h).
#pragma once

#include <cstdint>

#include "deepinfer/format.h"
#include "formats/scale.h"

namespace deepinfer::kernels {

constexpr int kLanes = 16;        // partial sums of one output
constexpr int kBlock = 32;        // k-values that share one scale, at the finest
constexpr int kSuperblock = 512;  // kLanes blocks: one turn of the lanes
constexpr int kSteps = 16;        // pairs of k-values in a block

/// How a kernel wants its scales.
enum class Scales : std::uint8_t {
  kNone,  ///< the weight has none (bf16)
  kE8m0,  ///< the published bytes, one per 32 k, in block order
  kF32,   ///< f32, one per 32 k, arranged to the kernel's lane order, padded to whole superblocks
};

/// What the floating-point unit does with subnormals while a kernel runs.
enum class FpState : std::uint8_t {
  kIeee,   ///< MXCSR 0x1F80: round to nearest even, subnormals kept
  kFlush,  ///< the same with flush-to-zero and denormals-are-zero
};

/// Kernels of one class give equal bits: same products, order, rounding and subnormals.
enum class ArithmeticClass : std::uint8_t {
  kBf16Pairs,   ///< bf16 weights: pairs over 16 lanes, flushed at each step
  kE4m3Blocks,  ///< e4m3fn: pairs (4j+i, 4j+2+i), one fma with the scale per block
  kE2m1Blocks,  ///< e2m1: pairs (8j+i, 8j+4+i), one fma with the scale per block
};

/// The order in which a kernel reads a row of x. Position p of each chunk of `chunk` values holds
/// the value with index order[p] of that chunk; the last chunk is padded with zeros.
struct Arrangement {
  std::int32_t chunk;              // 512 for code formats, 32 for bf16 weights
  bool as_f32;                     // f32 instead of bf16
  bool flush_tiny;                 // |x| < 2^-100 becomes +0
  const std::uint16_t* order;      // [chunk]
  const std::uint8_t* lane_block;  // [16]: the block that lane l of the kernel works on
};

struct GemmArgs {
  const void* x;              // [m] rows in the kernel's arrangement
  std::int64_t x_stride;      // bytes from row to row
  const std::uint8_t* w;      // [n] rows of published codes
  std::int64_t w_stride;      // bytes
  const void* scales;         // [n] rows, see Scales
  std::int64_t scale_stride;  // bytes; 0 when the rows share one row of scales
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  float* acc;  // [m, n, 16] lanes in block order: lane l sums blocks l, l+16, l+32, ...
};

struct Kernel {
  const char* name;  // <op>_<weight>_<act>_<mr>x<nr>_<isa>
  Isa isa;
  Element element;
  Scales scales;
  ArithmeticClass arithmetic;
  FpState fp_state;
  std::int32_t max_m;  // serves calls with m <= max_m; 0: any
  std::int32_t mr;
  std::int32_t nr;
  std::int32_t kr;
  const Arrangement* arrangement;
  void (*run)(const GemmArgs&) noexcept;
};

/// One row of gate and up to multiply into the row that w2 takes.
struct GluArgs {
  const std::uint16_t* gate;
  const std::uint16_t* up;
  std::int64_t step;   // elements from value to value of both: 2 where they alternate
  std::int64_t count;  // values
  float limit;         // gate = min(gate, limit), up = clamp(up, -limit, limit); NaN passes through
  float weight;
  std::uint16_t* out;  // [count]; may be gate
};

/// What a model does to rows between GEMMs, and the two ends of a GEMM. One generic source
/// (rows.h) compiled per instruction set: the same operations in the same order give the same bits.
struct RowKernels {
  /// xq[k] = decode(encode(x / s)) * s per block of 32, as bf16 (exact).
  void (*quantize_bf16)(const std::uint16_t* x, std::int64_t k, formats::ScaleLimit limit,
                        std::uint16_t* xq) noexcept;
  void (*quantize_f32)(const float* x, std::int64_t k, formats::ScaleLimit limit,
                       std::uint16_t* xq) noexcept;
  /// out = decode(code) * scale, for a power-of-two scale with which it is exact in bf16.
  void (*decode_e4m3fn)(const std::uint8_t* codes, std::int64_t count, float scale,
                        std::uint16_t* out) noexcept;
  /// One row of bf16 into a kernel's arrangement.
  void (*arrange)(const std::uint16_t* x, std::int64_t k, const Arrangement& arrangement,
                  void* out) noexcept;
  /// y[i] = tree over acc[i][0..15].
  void (*reduce)(const float* acc, std::int64_t count, float* y) noexcept;
  void (*store_bf16)(const float* y, std::int64_t count, std::uint16_t* out) noexcept;
  void (*store_f32)(const float* y, std::int64_t count, float* out) noexcept;
  /// out = bf16(bf16(x / sqrt(mean(x^2) + eps)) * weight)
  void (*rms_norm)(const std::uint16_t* x, const std::uint16_t* weight, std::int64_t count,
                   float eps, std::uint16_t* out) noexcept;
  /// x = bf16(x + y)
  void (*add)(std::uint16_t* x, const std::uint16_t* y, std::int64_t count) noexcept;
  /// out = bf16(silu(gate) * up * weight)
  void (*glu_silu)(const GluArgs& a) noexcept;
  /// out = bf16(bf16(bf16(silu(gate)) * up) * weight), the last only for a weight that is not 1
  void (*glu_silu_rounded)(const GluArgs& a) noexcept;
  /// out = bf16(bf16(up + 1) * bf16(gate * bf16(sigmoid(bf16(1.702 gate))))), then as above
  void (*glu_gpt_oss)(const GluArgs& a) noexcept;
  /// Rotates one head in place; halves are pairs (i, i + head_dim / 2); cos, sin [head_dim / 2].
  void (*rope)(std::uint16_t* head, const std::uint16_t* cos, const std::uint16_t* sin,
               std::int64_t head_dim) noexcept;
  /// One query head against `length` cached positions; k, v rows are `stride` elements apart.
  /// `scratch`: length + 16 * head_dim floats.
  void (*attend)(const std::uint16_t* q, const std::uint16_t* k, const std::uint16_t* v,
                 std::int64_t stride, std::int64_t length, std::int64_t head_dim, float scale,
                 float* scratch, std::uint16_t* out) noexcept;
  /// Sum of exp(x - largest) over a row, and the largest.
  float (*exp_sum)(const float* x, std::int64_t count, float* largest) noexcept;
};

/// Loops that do nothing but reach a limit of the machine: the roofs that rates are compared with.
struct RoofKernels {
  /// Reads `bytes` (a multiple of 4096) in `streams` (1, 2, 4) sequential streams side by side,
  /// with software prefetch when asked for; the value keeps the reads from being dropped.
  std::uint64_t (*read)(const void* data, std::int64_t bytes, int streams, bool prefetch) noexcept;
  /// Runs `rounds` of independent multiply-add chains in registers, the instruction of this file's
  /// kernels; returns the number of floating-point operations, `sink` keeps the result.
  std::int64_t (*multiply_add)(std::int64_t rounds, int chains, float* sink) noexcept;
};

/// Everything of one instruction set; at the foot of its file.
struct IsaTable {
  Isa isa;
  const char* name;
  std::uint32_t cpu_bits;  // what the CPU must have, see cpu.h
  const Kernel* kernels;
  std::int32_t num_kernels;
  const RowKernels* rows;
  const RoofKernels* roofs;
};

}  // namespace deepinfer::kernels
