// Version of the library and of the numeric contract.
#pragma once

namespace deepinfer {

constexpr const char* kVersion = "0.1.0";

/// Version of docs/determinism.md. Results with the same number have the same bits.
constexpr int kNumericContract = 1;

}  // namespace deepinfer
