#include "models/verify_bytes.h"

#include <algorithm>
#include <exception>

#include "models/scan_bytes.h"
#include "runtime/thread_pool.h"

namespace deepinfer::models {
namespace {

using Role = ScannedTensor::Role;

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;    // work of a thread, at least
constexpr std::int64_t kRegionBytes = std::int64_t{64} << 20;  // between two reports of progress

/// Bytes [begin, end) of a tensor: what one thread looks at.
struct Piece {
  const ScannedTensor* scanned;
  std::int64_t begin;
  std::int64_t end;
  Tallies tallies = {};
  std::exception_ptr failure = nullptr;
};

std::vector<std::int64_t> index_of(std::int64_t number, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    index[i] = number % shape[i];
    number /= shape[i];
  }
  return index;
}

FindingPlace place_of(const ScannedTensor& scanned, FindingKind kind, const ElementPlace& place) {
  const TensorView& view = scanned.tensor->view;
  const auto index_in_grid = [&](std::int64_t columns) {
    const MappedWeight& w = *scanned.weight;
    std::vector<std::int64_t> shape = {w.groups, w.view.scale_rows, columns};
    if (!w.stacked) shape.erase(shape.begin());
    return index_of(place.number, shape);
  };
  if (kind == FindingKind::kZeroBlock) {
    return {index_in_grid(scanned.weight->view.scale_columns), 0, 0};
  }
  constexpr int kByte = 8;
  if (scanned.role == Role::kScales && view.dtype == DType::kI32) {  // of four bytes
    return {index_in_grid(scanned.weight->view.scale_stride), place.bits, kByte};
  }
  const bool complex = view.dtype == DType::kC64;  // scanned as pairs of f32
  return {index_of(complex ? place.number / 2 : place.number, view.shape), place.bits,
          complex ? dtype_bits(DType::kF32) : dtype_bits(view.dtype)};
}

/// Collects pieces until there are enough for all threads, looks at them, and adds up what was
/// found per tensor.
class Scanner {
 public:
  Scanner(const Context& context, const std::function<void(double)>& progress, double total)
      : pool_(context.pool()), progress_(progress), total_(total) {}

  void add(const ScannedTensor& scanned) {
    const auto size = static_cast<std::int64_t>(scanned.tensor->view.size_bytes);
    for (std::int64_t begin = 0; begin < size;) {
      const std::int64_t end = scanned.end_of_stretch(begin, kPieceBytes);
      pieces_.push_back({&scanned, begin, end});
      waiting_ += end - begin;
      begin = end;
      if (waiting_ >= kRegionBytes) run();
    }
  }

  std::vector<Finding> finish() {
    run();
    report();
    return std::move(findings_);
  }

 private:
  void run() {
    pool_.parallel([&](int t) {
      const auto count = static_cast<std::int64_t>(pieces_.size());
      const Share share = share_of(count, 1, t, pool_.num_threads());
      for (std::int64_t i = share.begin; i < share.end; ++i) {
        Piece& piece = pieces_[static_cast<std::size_t>(i)];
        try {
          scan_elements(*piece.scanned, piece.begin, piece.end, piece.tallies);
          scan_blocks(*piece.scanned, piece.begin, piece.end, piece.tallies);
        } catch (...) {
          piece.failure = std::current_exception();
        }
      }
    });
    for (const Piece& piece : pieces_) {
      if (piece.failure) std::rethrow_exception(piece.failure);
      if (piece.scanned != current_) report();
      current_ = piece.scanned;
      for (std::size_t k = 0; k < sum_.size(); ++k) sum_[k].add(piece.tallies[k]);
    }
    done_ += static_cast<double>(waiting_);
    pieces_.clear();
    waiting_ = 0;
    progress_(total_ > 0 ? done_ / total_ : 1.0);
  }

  /// What was found in the current tensor becomes findings.
  void report() {
    for (std::size_t k = 0; k < sum_.size(); ++k) {
      const Tally& tally = sum_[k];
      if (tally.count == 0) continue;
      const auto kind = static_cast<FindingKind>(k);
      Finding finding = {kind, current_->tensor->name, tally.count, {}};
      for (std::int64_t i = 0; i < std::min(tally.count, Tally::kPlaces); ++i) {
        finding.first.push_back(
            place_of(*current_, kind, tally.first[static_cast<std::size_t>(i)]));
      }
      findings_.push_back(std::move(finding));
    }
    sum_ = {};
  }

  ThreadPool& pool_;
  const std::function<void(double)>& progress_;
  double total_;
  double done_ = 0;
  std::vector<Piece> pieces_;
  std::int64_t waiting_ = 0;  // bytes of the pieces
  const ScannedTensor* current_ = nullptr;
  Tallies sum_ = {};  // of the current tensor
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> verify_bytes(const Context& context, const Checkpoint& checkpoint,
                                  const WeightMap& map,
                                  const std::function<void(double part)>& progress) {
  const std::vector<ScannedTensor> tensors = scanned_tensors(checkpoint, map);
  double total = 0;
  for (const ScannedTensor& t : tensors) total += static_cast<double>(t.tensor->view.size_bytes);
  Scanner scanner(context, progress, total);
  for (const ScannedTensor& scanned : tensors) scanner.add(scanned);
  return scanner.finish();
}

}  // namespace deepinfer::models
