#include "models/verify_bits.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "deepinfer/error.h"
#include "models/compare_bits.h"
#include "models/row_samples.h"

namespace deepinfer::models {
namespace {

using Clock = std::chrono::steady_clock;

// Different rows of x: every row of a batch is one of them, at random, so that each is seen alone,
// first, last and between others while the slow reference computes it once.
constexpr std::int64_t kRows = 2;

// Around the edges of the kernels' tiles (4 rows), of gemv (up to 4) and of a pass over w (64).
constexpr std::array<std::int64_t, 13> kBatches = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 65};
constexpr std::int64_t kScalarBatch = 2;  // the scalar kernels are some hundred times slower

/// How one half of the work is done.
struct Mode {
  Activations activations;
  FloatType y;
};
constexpr std::array<Mode, 2> kModes = {
    {{Activations::kAsIs, FloatType::kF32}, {Activations::kQuantize224, FloatType::kBf16}}};

std::int64_t bytes_of(FloatType type) { return type == FloatType::kBf16 ? 2 : 4; }

/// bf16 with a random sign and mantissa and an exponent of 2^(center - spread) .. 2^(center +
/// spread).
std::uint16_t random_bf16(std::mt19937_64& random, int center, int spread) {
  constexpr int kBias = 127;
  const std::uint64_t u = random();
  const auto exponent = static_cast<std::uint64_t>(kBias + center - spread) +
                        (u >> 32) % static_cast<std::uint64_t>(2 * spread + 1);
  return static_cast<std::uint16_t>((u & 0x807FU) | (exponent << 7));
}

using Rows = std::vector<std::uint16_t>;  // bf16

/// Rows of x [kRows, k]. As it lies, x has exponents of +-20: sums of such products are never
/// exact, so another order shows. Quantized, most of that would become zero: there each block has
/// its own exponent, and values that fill its codes.
Rows make_x(std::uint64_t seed, std::int64_t k, Activations activations) {
  constexpr int kWide = 20;
  constexpr int kNarrow = 3;
  constexpr std::int64_t kBlock = 32;
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(k));
  Rows x(static_cast<std::size_t>(kRows * k));
  int center = 0;
  for (std::int64_t i = 0; i < kRows * k; ++i) {
    if (activations != Activations::kAsIs && i % k % kBlock == 0) {
      center = static_cast<int>(random() % (2 * kNarrow + 1)) - kNarrow;
    }
    const int spread = activations == Activations::kAsIs ? kWide : kNarrow;
    x[static_cast<std::size_t>(i)] = random_bf16(random, center, spread);
  }
  return x;
}

/// Rows [first, last) of a sample, counted from its first row.
struct Slice {
  std::int64_t first;
  std::int64_t last;
};

WeightView slice_rows(const WeightView& view, std::int64_t first, std::int64_t last) {
  return slice(view, first, last - first, 0, view.k);
}

/// One way to compute the rows of a sample.
struct Trial {
  const Context* context;
  Mode mode;
  std::vector<std::int64_t> rows;  // [m]: which row of x
  std::vector<Slice> slices;
};

class BitVerifier {
 public:
  BitVerifier(const WeightMap& map, const BitOptions& options)
      : map_(map),
        options_(options),
        random_(options.seed),
        reference_({.num_threads = 1, .isa = Isa::kRef}) {
    check_.isas = usable_isas();
    check_.threads = {1, 2, 3, options.max_threads};
    std::sort(check_.threads.begin(), check_.threads.end());
    check_.threads.erase(std::unique(check_.threads.begin(), check_.threads.end()),
                         check_.threads.end());
    check_.batches.assign(kBatches.begin(), kBatches.end());
    for (const Isa isa : check_.isas) {
      for (const int threads : check_.threads) {
        auto& list = isa == Isa::kRef ? scalar_ : fast_;
        list.push_back(
            std::make_unique<Context>(ContextOptions{.num_threads = threads, .isa = isa}));
      }
    }
  }

  BitCheck run(std::vector<std::int64_t>& rows_compared) {
    rows_compared.assign(map_.weights().size(), 0);
    for (const MappedWeight& weight : map_.weights()) {
      check_.rows += num_rows(weight);
    }
    const Clock::time_point begin = Clock::now();
    std::int64_t done = 0;
    for (const RowSample& sample : row_samples(map_, options_.seed)) {
      const std::chrono::duration<double> spent = Clock::now() - begin;
      double part = static_cast<double>(done) / static_cast<double>(check_.rows);
      if (options_.budget) {
        if (spent >= *options_.budget) break;
        part = std::max(part, spent / std::chrono::duration<double>(*options_.budget));
      }
      options_.progress(part);
      done += sample.last - sample.first;
      if (!compare(sample)) continue;
      rows_compared[sample.weight] += sample.last - sample.first;
      check_.rows_compared += sample.last - sample.first;
    }
    check_.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    options_.progress(1.0);
    return check_;
  }

 private:
  /// False where the matrix cannot be prepared.
  bool compare(const RowSample& sample) {
    if (!is_usable(sample)) return false;
    const WeightView view = slice_rows(matrix_of(sample), sample.first, sample.last);
    const Weight prepared = Weight::prepare(view, "sample");
    for (const Mode& mode : kModes) {
      const Rows& x = x_of(view.k, mode.activations);
      expected_.resize(static_cast<std::size_t>(kRows * view.n * bytes_of(mode.y)));
      deepinfer::linear(reference_, {x.data(), FloatType::kBf16, kRows, view.k, 0}, prepared,
                        {expected_.data(), mode.y, kRows, view.n, 0}, mode.activations);
      for (const auto& context : fast_) {
        try_out(sample, {context.get(), mode, batch(next_batch()), random_slices(view.n)});
      }
      if (!sample.is_first && !fast_.empty()) continue;
      const Context& scalar = *scalar_[num_scalar_++ % scalar_.size()];
      try_out(sample, {&scalar, mode, batch(kScalarBatch), random_slices(view.n)});
      if (!fast_.empty()) try_whole(sample, mode);  // ref would take too long
    }
    return true;
  }

  WeightView matrix_of(const RowSample& sample) const {
    return group_view(map_.weights()[sample.weight], sample.group);
  }

  bool is_usable(const RowSample& sample) {
    const auto [place, is_new] = usable_.try_emplace({sample.weight, sample.group}, true);
    if (!is_new) return place->second;
    try {
      Weight::prepare(matrix_of(sample), "sample");
    } catch (const Error&) {  // NaN, infinite or negative scales: a finding of the first half
      place->second = false;
    }
    return place->second;
  }

  const Rows& x_of(std::int64_t k, Activations activations) {
    Rows& x = x_[{k, activations}];
    if (x.empty()) x = make_x(options_.seed, k, activations);
    return x;
  }

  std::int64_t next_batch() { return kBatches[num_batches_++ % kBatches.size()]; }

  std::vector<std::int64_t> batch(std::int64_t m) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < m; ++i) {
      rows.push_back(static_cast<std::int64_t>(random_() % std::uint64_t{kRows}));
    }
    return rows;
  }

  /// At random: the whole sample; two parts; its first and its last rows, which overlap. Cuts may
  /// lie inside of a block.
  std::vector<Slice> random_slices(std::int64_t n) {
    const std::uint64_t kind = random_() % 3;
    if (kind == 0 || n == 1) return {{0, n}};
    const auto below = [&](std::int64_t bound) {
      return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
    };
    const std::int64_t cut = 1 + below(n - 1);
    if (kind == 1) return {{0, cut}, {cut, n}};
    return {{0, cut + below(n - cut)}, {cut, n}};
  }

  /// x of a trial [m, k]; `block` leaves only this 32-block of k, -1 all.
  void gather(const Trial& trial, std::int64_t k, std::int64_t block, Rows& out) {
    constexpr std::int64_t kBlock = 32;
    const Rows& x = x_of(k, trial.mode.activations);
    const std::int64_t first = block < 0 ? 0 : block * kBlock;
    const std::int64_t count = block < 0 ? k : std::min(kBlock, k - first);
    out.assign(trial.rows.size() * static_cast<std::size_t>(k), 0);
    for (std::size_t i = 0; i < trial.rows.size(); ++i) {
      std::memcpy(out.data() + static_cast<std::int64_t>(i) * k + first,
                  x.data() + trial.rows[i] * k + first, static_cast<std::size_t>(count) * 2);
    }
  }

  /// y of rows [first, last) of a weight, as `trial` computes it; 0xFF where nothing was written.
  void compute(const Trial& trial, const WeightView& view, const Rows& x,
               std::vector<std::byte>& y) const {
    const auto m = static_cast<std::int64_t>(trial.rows.size());
    y.assign(static_cast<std::size_t>(m * view.n * bytes_of(trial.mode.y)), std::byte{0xFF});
    options_.linear(*trial.context, {x.data(), FloatType::kBf16, m, view.k, 0},
                    Weight::prepare(view, "sample"), {y.data(), trial.mode.y, m, view.n, 0},
                    trial.mode.activations);
  }

  void try_out(const RowSample& sample, const Trial& trial) {
    const WeightView view = matrix_of(sample);
    gather(trial, view.k, -1, batch_);
    for (const Slice& slice : trial.slices) {
      const Slice at = {sample.first + slice.first, sample.first + slice.last};
      compute(trial, slice_rows(view, at.first, at.last), batch_, found_);
      judge(sample, trial, at, at);
    }
  }

  /// One row against the whole matrix with all threads, as a model does it.
  void try_whole(const RowSample& sample, const Mode& mode) {
    const WeightView view = matrix_of(sample);
    const Trial trial = {fast_[check_.threads.size() - 1].get(), mode, batch(1), {}};
    gather(trial, view.k, -1, batch_);
    compute(trial, view, batch_, found_);
    judge(sample, trial, {0, view.n}, {sample.first, sample.last});
  }

  /// Compares columns `seen` of y, computed for rows `computed` of the matrix, with the reference
  /// of the sample.
  void judge(const RowSample& sample, const Trial& trial, Slice computed, Slice seen) {
    const std::int64_t size = bytes_of(trial.mode.y);
    const std::int64_t width = seen.last - seen.first;
    Mismatch mismatch;
    for (std::size_t i = 0; i < trial.rows.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      const std::byte* expected =
          expected_.data() +
          size * (trial.rows[i] * (sample.last - sample.first) + seen.first - sample.first);
      const std::byte* found = found_.data() + size * (row * (computed.last - computed.first) +
                                                       seen.first - computed.first);
      Mismatch more =
          compare_bits({expected, trial.mode.y, 1, width, 0}, {found, trial.mode.y, 1, width, 0});
      more.row = row;
      mismatch.add(more);
      check_.outputs += width;
    }
    if (mismatch.count == 0) return;
    check_.differences += mismatch.count;
    check_.largest_error = std::max(check_.largest_error, mismatch.largest_error);
    if (check_.first) return;
    mismatch.column += seen.first;
    check_.first = describe(sample, trial, computed, mismatch);
  }

  BitDifference describe(const RowSample& sample, const Trial& trial, Slice computed,
                         const Mismatch& mismatch) {
    BitDifference out;
    const MappedWeight& weight = map_.weights()[sample.weight];
    out.tensor = weight.codes->name;
    if (weight.stacked) out.group = sample.group;
    out.row = mismatch.row;
    out.column = mismatch.column;
    out.expected = mismatch.expected;
    out.found = mismatch.found;
    out.type = trial.mode.y;
    out.activations = trial.mode.activations;
    out.isa = trial.context->isa();
    out.threads = trial.context->num_threads();
    out.m = static_cast<std::int64_t>(trial.rows.size());
    out.first = computed.first;
    out.last = computed.last;
    out.k = differing_blocks(matrix_of(sample), trial, computed, mismatch);
    return out;
  }

  /// The blocks of k that give a difference by themselves, in the output of `mismatch`. None does
  /// when the fault lies in the order of the sum.
  std::vector<std::int64_t> differing_blocks(const WeightView& view, const Trial& trial,
                                             Slice computed, const Mismatch& mismatch) {
    constexpr std::int64_t kBlock = 32;
    const Weight row =
        Weight::prepare(slice_rows(view, mismatch.column, mismatch.column + 1), "row");
    const Trial alone = {
        &reference_, trial.mode, {trial.rows[static_cast<std::size_t>(mismatch.row)]}, {}};
    const std::int64_t size = bytes_of(trial.mode.y);
    const std::int64_t n = computed.last - computed.first;
    std::vector<std::int64_t> blocks;
    std::array<std::byte, sizeof(float)> expected = {};
    Rows one;
    for (std::int64_t block = 0; block * kBlock < view.k; ++block) {
      gather(trial, view.k, block, batch_);
      compute(trial, slice_rows(view, computed.first, computed.last), batch_, found_);
      gather(alone, view.k, block, one);
      deepinfer::linear(reference_, {one.data(), FloatType::kBf16, 1, view.k, 0}, row,
                        {expected.data(), trial.mode.y, 1, 1, 0}, trial.mode.activations);
      const auto* found =
          found_.data() + size * (mismatch.row * n + mismatch.column - computed.first);
      if (std::memcmp(found, expected.data(), static_cast<std::size_t>(size)) != 0)
        blocks.push_back(block);
    }
    return blocks;
  }

  const WeightMap& map_;
  const BitOptions& options_;
  std::mt19937_64 random_;
  Context reference_;
  std::vector<std::unique_ptr<Context>> fast_;    // isas best first, threads ascending
  std::vector<std::unique_ptr<Context>> scalar_;  // threads ascending
  std::map<std::pair<std::int64_t, Activations>, Rows> x_;
  std::size_t num_batches_ = 0;
  std::size_t num_scalar_ = 0;
  Rows batch_;                                                   // x of a call [m, k]
  std::vector<std::byte> expected_;                              // [kRows, n] of the sample
  std::vector<std::byte> found_;                                 // y of a call
  std::map<std::pair<std::size_t, std::int64_t>, bool> usable_;  // by weight and group
  BitCheck check_;
};

}  // namespace

BitCheck verify_bits(const WeightMap& map, const BitOptions& options,
                     std::vector<std::int64_t>& rows_compared) {
  return BitVerifier(map, options).run(rows_compared);
}

}  // namespace deepinfer::models
