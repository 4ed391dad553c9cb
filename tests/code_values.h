// What codes mean, by their definitions and not by the library's decoders: doubles are exact here.
#pragma once

#include <cmath>
#include <limits>

namespace deepinfer::test {

inline double e4m3fn_value(int code) {
  const int e = (code >> 3) & 15;
  const int m = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline double e2m1_value(int code) {
  constexpr double kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

inline double e8m0_value(int byte) {
  return byte == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1, byte - 127);
}

inline double bf16_value(int code) {
  const int e = (code >> 7) & 255;
  const int m = code & 127;
  double magnitude = e == 0 ? std::ldexp(m, -133) : std::ldexp(128 + m, e - 134);
  if (e == 255) {
    magnitude =
        m == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace deepinfer::test
