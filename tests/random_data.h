// Seeded data for tests: the same on every platform.
#pragma once

#include <cstdint>
#include <vector>

namespace deepinfer::test {

/// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  /// 0 .. bound - 1
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  /// bf16 with a random sign and mantissa and an exponent of 2^-spread .. 2^spread.
  std::uint16_t bf16(int spread) {
    const std::uint64_t u = next();
    const auto exponent = static_cast<std::uint64_t>(127 - spread) +
                          (u >> 32) % static_cast<unsigned>(2 * spread + 1);
    return static_cast<std::uint16_t>((u & 0x807FU) | (exponent << 7));
  }

  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> out(count);
    for (std::uint8_t& b : out) b = static_cast<std::uint8_t>(next() >> 56);
    return out;
  }

 private:
  std::uint64_t state_;
};

/// Values from -1 to 1 in steps of a thousandth.
inline std::vector<float> random_floats(Random& random, std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<float>(random.next() % 2001) / 1000.0F - 1.0F);
  }
  return out;
}

}  // namespace deepinfer::test
