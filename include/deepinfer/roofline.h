// The two limits of the machine that every rate is compared with.
#pragma once

#include "deepinfer/export.h"
#include "deepinfer/runtime.h"

namespace deepinfer {

struct Roofs {
  double stream_gbps;  ///< sequential reading of memory, all threads, 1e9 bytes a second
  double peak_gflops;  ///< multiply-adds in registers, all threads, the instruction of the ISA
};

/// Measures both with the threads and instruction set of `context`, taking about `seconds`. `data`
/// of `bytes` should be larger than the last-level cache and lie where the weights to compare with
/// lie (in a mapped file). Each roof is the best of several ways.
DEEPINFER_API Roofs measure_roofs(const Context& context, const void* data, std::int64_t bytes,
                                  double seconds);

}  // namespace deepinfer
