// Comparing two results bit for bit. Nothing is rounded, scaled or averaged: a measure that
// forgives anything (a cosine forgives a factor) cannot see the errors that this library must not
// make.
#pragma once

#include <cstdint>

#include "deepinfer/linear.h"

namespace deepinfer::models {

/// Elements that differ, and the first of them in row-major order.
struct Mismatch {
  std::int64_t count = 0;
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::uint32_t expected = 0;  ///< bits, 16 or 32 of them
  std::uint32_t found = 0;
  double largest_error = 0;  ///< relative; infinite where `expected` is 0 or one is Inf or NaN

  /// Adds the mismatches of a later row.
  void add(const Mismatch& later);
};

/// Both [rows, columns], of one type. Zeros of different signs differ; so do different NaNs.
Mismatch compare_bits(const MatrixView& expected, const MatrixView& found);

}  // namespace deepinfer::models
