// Proving a checkpoint: every byte is one that its format allows, and every kernel of this CPU
// computes its layers with the bits of the scalar reference.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/export.h"
#include "deepinfer/linear.h"
#include "deepinfer/runtime.h"
#include "deepinfer/weight_map.h"

namespace deepinfer {

/// What bytes can show. The first four are errors, the others remarks: legal, but worth knowing.
enum class FindingKind : std::uint8_t {
  kNanCode,      ///< an fp8 code that is NaN (or, in e5m2, infinite)
  kNanScale,     ///< a scale that is NaN: e8m0 byte 255, or a NaN in e4m3, f32, bf16 or f16
  kBadScale,     ///< an e4m3, f32, bf16 or f16 scale that is infinite or negative
  kNotFinite,    ///< NaN or infinity in f64, f32, bf16 or f16 numbers that are no scales
  kZeroScale,    ///< e8m0 byte 0 (which means 2^-127), or a scale of 0.0
  kZeroBlock,    ///< a block of codes, sharing one scale, that are all +-0
  kScalesDiffer  ///< scales per row: 32 rows of a matrix, from a multiple of 32, whose scales
                 ///< differ in a column
};
constexpr std::size_t kNumFindingKinds = 7;

DEEPINFER_API bool is_error(FindingKind kind) noexcept;

/// One place: an index into the tensor, or for kZeroBlock, and for scales of which an element of
/// the tensor holds several, into the grid of blocks: [row, column], in a stack [group, row,
/// column].
struct FindingPlace {
  std::vector<std::int64_t> index;
  std::uint64_t bits = 0;  ///< of the element; 0 for kZeroBlock
  int width = 0;           ///< of the element, in bits; 0 for kZeroBlock
};

/// All findings of one kind in one tensor.
struct Finding {
  FindingKind kind = FindingKind::kNanCode;
  std::string tensor;
  std::int64_t count = 0;
  std::vector<FindingPlace> first;  ///< the first few, in order of index
};

/// Outputs of linear() that do not have the reference's bits, and how to get them again.
struct BitDifference {
  std::string tensor;                 ///< the codes of the weight
  std::optional<std::int64_t> group;  ///< which matrix of a stack; nothing if it is none
  std::int64_t row = 0;               ///< of y: which of the m rows of x
  std::int64_t column = 0;            ///< of y, which is a row of the weight
  std::uint32_t expected = 0;         ///< bits of the reference
  std::uint32_t found = 0;            ///< bits of the kernel
  FloatType type{};                   ///< of y
  Activations activations{};          ///< how x was used
  Isa isa{};                          ///< of the kernel
  int threads = 0;                    ///< of the call
  std::int64_t m = 0;                 ///< rows of x in the call
  std::int64_t first = 0;             ///< rows [first, last) of the matrix were in the call
  std::int64_t last = 0;              ///< see `first`
  std::vector<std::int64_t> k;  ///< 32-blocks of k (first is 0) that show it with all others zero
};

/// What comparing bits gave.
struct BitCheck {
  std::int64_t rows = 0;           ///< of all weights
  std::int64_t rows_compared = 0;  ///< on every instruction set in `isas` but the scalar one
  std::int64_t outputs = 0;        ///< numbers compared
  std::int64_t differences = 0;    ///< numbers that differ
  double largest_error = 0;        ///< relative, of those that differ; infinite next to 0, Inf, NaN
  std::optional<BitDifference> first;
  double seconds = 0;
  std::vector<Isa> isas;              ///< best first
  std::vector<int> threads;           ///< thread counts
  std::vector<std::int64_t> batches;  ///< values of m
};

/// One line of the report: a weight format, or "other" for tensors that are no weights.
struct FormatCheck {
  std::string format;
  std::int64_t tensors = 0;                               ///< weights, or tensors of "other"
  std::uint64_t bytes = 0;                                ///< codes and scales
  std::array<std::int64_t, kNumFindingKinds> found = {};  ///< by FindingKind
  std::int64_t rows = 0;
  std::int64_t rows_compared = 0;
};

struct DEEPINFER_API VerifyReport {
  std::vector<FormatCheck> formats;  ///< sorted by name, "other" last
  std::vector<Finding> findings;     ///< sorted by tensor, then kind
  std::vector<MapProblem> problems;  ///< tensors that cannot be used, e.g. scales of a wrong shape
  std::vector<MapProblem> cannot_run;  ///< codes of weights that no kernel takes: not compared
  BitCheck bits;

  /// No error among the findings, no problem, no difference.
  bool ok() const noexcept;
};

enum class VerifyStage : std::uint8_t { kBytes, kBits };

struct VerifyOptions {
  /// Time for comparing bits: no new rows are begun after it. Nothing: all rows are compared.
  std::optional<std::chrono::milliseconds> budget = std::chrono::seconds(60);
  /// Chooses x, and the order in which rows are taken. Only where the budget ends depends on time.
  std::uint64_t seed = 1;
  /// Called on the calling thread with the part of a stage that is done, 0 to 1. What it throws
  /// ends the work and reaches the caller.
  std::function<void(VerifyStage stage, double part)> progress;
};

/// Reads every byte of the checkpoint at `path` (a safetensors file, an index or a folder) and
/// compares y = x . w^T of its weights, on every instruction set of this CPU, with the scalar
/// reference on one thread: alone and in batches, in several thread counts up to that of `context`,
/// whole and in slices of columns of y. Half of the work takes bf16 x as it lies, with exponents
/// spread so far that another order of a sum shows, and f32 y; half takes quantized x and bf16 y.
///
/// Throws what Checkpoint::open and WeightMap::build throw; what they accept never throws.
DEEPINFER_API VerifyReport verify(const Context& context, const std::filesystem::path& path,
                                  const VerifyOptions& options = {});

}  // namespace deepinfer
