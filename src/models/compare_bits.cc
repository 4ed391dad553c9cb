#include "models/compare_bits.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/bf16.h"

namespace deepinfer::models {
namespace {

float value_of(std::uint16_t bits) { return formats::decode_bf16(bits); }
float value_of(std::uint32_t bits) { return formats::float_of(bits); }

double relative_error(double expected, double found) {
  const double error = std::fabs(found - expected) / std::fabs(expected);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

template <class Bits>
const Bits* row_of(const MatrixView& view, std::int64_t row) {
  const std::int64_t stride = view.stride != 0 ? view.stride : view.columns;
  return static_cast<const Bits*>(view.data) + row * stride;
}

template <class Bits>
Mismatch compare(const MatrixView& expected, const MatrixView& found) {
  Mismatch mismatch;
  for (std::int64_t row = 0; row < expected.rows; ++row) {
    const Bits* a = row_of<Bits>(expected, row);
    const Bits* b = row_of<Bits>(found, row);
    const auto bytes = static_cast<std::size_t>(expected.columns) * sizeof(Bits);
    if (std::memcmp(a, b, bytes) == 0) continue;
    for (std::int64_t column = 0; column < expected.columns; ++column) {
      if (a[column] == b[column]) continue;
      mismatch.add({.count = 1,
                    .row = row,
                    .column = column,
                    .expected = a[column],
                    .found = b[column],
                    .largest_error = relative_error(value_of(a[column]), value_of(b[column]))});
    }
  }
  return mismatch;
}

}  // namespace

void Mismatch::add(const Mismatch& later) {
  if (later.count == 0) return;
  Mismatch sum = count == 0 ? later : *this;
  sum.count = count + later.count;
  sum.largest_error = std::max(largest_error, later.largest_error);
  *this = sum;
}

Mismatch compare_bits(const MatrixView& expected, const MatrixView& found) {
  return expected.type == FloatType::kBf16 ? compare<std::uint16_t>(expected, found)
                                           : compare<std::uint32_t>(expected, found);
}

}  // namespace deepinfer::models
