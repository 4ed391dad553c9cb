// docs/determinism.md, "The order of a dot product", in plain loops for one output of a code
// format.
#pragma once

#include <cmath>
#include <vector>

#include "deepinfer/format.h"

namespace deepinfer::test {

/// w, x: [k] decoded codes of w and bf16 values of x; w_scales, x_scales: one per 32 k. A scale of
/// x is 1 where it is inside x.
inline float contract_dot(Element element, const std::vector<float>& w,
                          const std::vector<float>& w_scales, const std::vector<float>& x,
                          const std::vector<float>& x_scales) {
  const std::size_t k = w.size();
  const auto value = [k](const std::vector<float>& v, std::size_t i) {
    return i < k ? v[i] : 0.0F;
  };
  const std::size_t width = element == Element::kE4m3fn ? 4 : 8;  // pairs: (wj + i, wj + w/2 + i)
  float lanes[16] = {};
  for (std::size_t begin = 0; begin < (k + 511) / 512 * 512; begin += 32) {
    float d = 0.0F;
    for (std::size_t j = 0; j < 32 / width; ++j) {
      for (std::size_t i = 0; i < width / 2; ++i) {
        const std::size_t lo = begin + width * j + i;
        for (const std::size_t at : {lo + width / 2, lo}) {
          const float v = std::fabs(value(x, at)) < 0x1p-100F ? 0.0F : value(x, at);
          d = std::fma(value(w, at), v, d);
        }
      }
    }
    const std::size_t b = begin / 32;
    const float scale = begin < k ? w_scales[b] * x_scales[b] : 1.0F;
    lanes[b % 16] = std::fma(d, scale, lanes[b % 16]);
  }
  for (std::size_t h = 8; h > 0; h /= 2) {
    for (std::size_t i = 0; i < h; ++i) lanes[i] += lanes[i + h];
  }
  return lanes[0];
}

}  // namespace deepinfer::test
