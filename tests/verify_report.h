// What tests of verify() share.
#pragma once

#include <string>
#include <vector>

#include "deepinfer/verify.h"

namespace deepinfer::test {

using Bytes = std::vector<std::uint8_t>;
using Index = std::vector<std::int64_t>;

constexpr std::uint8_t kOne = 0x38;    // 1.0 in e4m3fn
constexpr std::uint8_t kScale1 = 127;  // 1.0 in e8m0

inline VerifyReport check(const std::filesystem::path& path, VerifyOptions options = {}) {
  return verify(Context(), path, options);
}

/// Reads the bytes only.
inline VerifyReport check_bytes(const std::filesystem::path& path) {
  VerifyOptions options;
  options.budget = std::chrono::milliseconds(0);
  return check(path, options);
}

inline const Finding* find(const VerifyReport& report, FindingKind kind,
                           const std::string& tensor) {
  for (const Finding& finding : report.findings) {
    if (finding.kind == kind && finding.tensor == tensor) return &finding;
  }
  return nullptr;
}

struct BytePlan {
  Index shape;
  Bytes bytes;

  BytePlan(std::int64_t rows, std::int64_t columns, std::uint8_t value)
      : shape{rows, columns}, bytes(static_cast<std::size_t>(rows * columns), value) {}
  std::uint8_t& at(std::int64_t row, std::int64_t column) {
    return bytes[static_cast<std::size_t>(row * shape[1] + column)];
  }
};

}  // namespace deepinfer::test
