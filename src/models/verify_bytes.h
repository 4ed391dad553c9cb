// The first half of verify(): reads every byte once and counts those that their format does not
// allow, or that are worth a remark.
#pragma once

#include <functional>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/verify.h"

namespace deepinfer::models {

/// Findings of all tensors, sorted by tensor and kind; they do not depend on the number of threads.
/// `progress` is called on the calling thread with the part that is done.
std::vector<Finding> verify_bytes(const Context& context, const Checkpoint& checkpoint,
                                  const WeightMap& map,
                                  const std::function<void(double part)>& progress);

}  // namespace deepinfer::models
