// Reading every byte of a checkpoint to say what its codes and scales hold. Nothing is judged: NaN
// and the ends of the e8m0 range are counted.
#pragma once

#include <cstdint>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/export.h"
#include "deepinfer/runtime.h"
#include "deepinfer/weight_map.h"

namespace deepinfer {

/// What was counted in one tensor, or in several.
struct DEEPINFER_API ScanCounts {
  std::uint64_t nan = 0;              ///< codes, scales or values that are NaN (e8m0: byte 255)
  std::uint64_t infinite = 0;         ///< values or scales that are infinite
  std::uint64_t negative_scales = 0;  ///< f32, bf16 and f16 scales below zero
  std::uint64_t e8m0_0 = 0;           ///< e8m0 bytes 0, which some take for zero: 2^-127
  std::uint64_t e8m0_255 = 0;         ///< e8m0 bytes 255, which some take for infinity: NaN

  ScanCounts& operator+=(const ScanCounts& other) noexcept;
};

struct Scan {
  std::vector<ScanCounts> counts;  ///< of each tensor, in the order of Checkpoint::tensors()

  /// Tensors with the same data type, shape and bytes, of at least 4096 bytes: two or more in each.
  std::vector<std::vector<const Tensor*>> identical;
};

/// Reads all tensors with the threads of `context`. The result depends on nothing but the files.
DEEPINFER_API Scan scan(const Context& context, const Checkpoint& checkpoint, const WeightMap& map);

}  // namespace deepinfer
