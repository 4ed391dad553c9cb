// Words and numbers for people that several commands print.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::cli {

/// Names come from a file: no control character may reach the terminal.
inline std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < ' ' || byte == 0x7F ? '?' : c;
  }
  return out;
}

/// Bytes as MB.
inline double mega(std::uint64_t bytes) {
  constexpr double kMega = 1e6;
  return static_cast<double>(bytes) / kMega;
}

}  // namespace deepinfer::cli
