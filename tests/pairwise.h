// A pairwise cover: few test cases in which every two values of every two parameters meet.
//
// Greedy and deterministic: each row starts from the first pair that no row has yet, and every
// further parameter takes the value that covers most missing pairs with what the row holds
// already. Within a third of the smallest possible cover, which is the product of the two longest
// parameters; an exact minimum is not worth more code.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace deepinfer::test {

class Pairwise {
 public:
  /// Rows of value indices; `counts` are the numbers of values of the parameters.
  static std::vector<std::vector<std::size_t>> cover(const std::vector<std::size_t>& counts) {
    Pairwise pairs(counts);
    std::vector<std::vector<std::size_t>> rows;
    while (pairs.next_ < pairs.missing_.size()) {
      rows.push_back(pairs.make_row(rows.size()));
      pairs.take(rows.back());
    }
    return rows;
  }

 private:
  static constexpr std::size_t kUnset = static_cast<std::size_t>(-1);

  explicit Pairwise(const std::vector<std::size_t>& counts) : counts_(counts) {
    for (const std::size_t count : counts) {
      first_.push_back(values_);
      values_ += count;
    }
    missing_.assign(values_ * values_, false);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (std::size_t j = i + 1; j < counts.size(); ++j) {
        for (std::size_t a = 0; a < counts[i]; ++a) {
          for (std::size_t b = 0; b < counts[j]; ++b) missing_[at(i, a, j, b)] = true;
        }
      }
    }
    skip_covered();
  }

  /// Index of a pair, i < j.
  std::size_t at(std::size_t i, std::size_t a, std::size_t j, std::size_t b) const {
    return (first_[i] + a) * values_ + first_[j] + b;
  }

  void skip_covered() {
    while (next_ < missing_.size() && !missing_[next_]) ++next_;
  }

  /// Missing pairs of value b of parameter j with the values that the row holds.
  std::size_t gain(const std::vector<std::size_t>& row, std::size_t j, std::size_t b) const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i == j || row[i] == kUnset) continue;
      count += missing_[i < j ? at(i, row[i], j, b) : at(j, b, i, row[i])] ? 1 : 0;
    }
    return count;
  }

  std::vector<std::size_t> make_row(std::size_t turn) const {
    std::vector<std::size_t> row(counts_.size(), kUnset);
    for (const std::size_t value : {next_ / values_, next_ % values_}) {
      const auto above = std::upper_bound(first_.begin(), first_.end(), value);
      const auto parameter = static_cast<std::size_t>(above - first_.begin()) - 1;
      row[parameter] = value - first_[parameter];
    }
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (row[j] != kUnset) continue;
      std::size_t best = turn % counts_[j];  // where nothing is gained, the values take turns
      for (std::size_t b = 0; b < counts_[j]; ++b) {
        if (gain(row, j, b) > gain(row, j, best)) best = b;
      }
      row[j] = best;
    }
    return row;
  }

  void take(const std::vector<std::size_t>& row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (std::size_t j = i + 1; j < row.size(); ++j) missing_[at(i, row[i], j, row[j])] = false;
    }
    skip_covered();
  }

  std::vector<std::size_t> counts_;
  std::vector<std::size_t> first_;  // of each parameter's values in the numbering of all
  std::size_t values_ = 0;
  std::vector<bool> missing_;  // [values_, values_], pairs that no row has yet
  std::size_t next_ = 0;       // the first missing pair
};

}  // namespace deepinfer::test
