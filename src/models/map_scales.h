// Fitting scales to codes: which grid it is, by configuration, data type and shape together.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "deepinfer/weight_map.h"
#include "models/quantization_config.h"

namespace deepinfer::models {

/// Why a tensor cannot be used. Thrown and caught inside of the weight map.
struct Refusal {
  std::string reason;
};

[[noreturn]] void refuse(std::string reason);

/// Sets n, k, the codes and the stack of `weight` from the tensor of codes. `segment_rows`: rows
/// after which the grid begins anew, or 0.
void attach_codes(MappedWeight& weight, const Tensor& codes, CodeShape shape,
                  std::int64_t segment_rows);

/// Finds the one of `layouts` whose grid has the shape and data type of `scales`, and sets
/// everything about scales in `weight`; refuses when none or several do. `weight` has its codes.
const Layout& attach_scales(MappedWeight& weight, std::span<const Layout* const> layouts,
                            const Statement& said, const Tensor& scales);

}  // namespace deepinfer::models
