// Calls of the public functions: arguments checked by name, then one gemm(). `name` begins
// messages; `halves` divides the columns in two first, which changes no bit.
#pragma once

#include <optional>

#include "deepinfer/prepared_weight.h"
#include "ops/arguments.h"
#include "ops/gemm.h"

namespace deepinfer::ops {

constexpr std::int64_t kHalvesOf = 256;  // columns that make two whole halves of 128

/// d = a . b^T of quantized activations; fp4 weights quantize them once more.
void multiply_codes(const Context& context, const char* name, const QuantizedView& a,
                    const PreparedWeight& b, const MutableMatrixView& d,
                    std::optional<std::int64_t> group, Store store, bool halves);

/// y = x . w^T
void multiply_rows(const Context& context, const char* name, const MatrixView& x, const Weight& w,
                   const MutableMatrixView& y, Activations activations, bool halves);

/// The same with x quantized when *flag is 1, else zeros.
void multiply_gated(const Context& context, const char* name, const MatrixView& x, const Weight& w,
                    const std::int32_t* flag, const MutableMatrixView& y, bool halves);

}  // namespace deepinfer::ops
