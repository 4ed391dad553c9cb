// A checkpoint in a folder of its own, for tests of what a checkpoint means.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/linear.h"
#include "deepinfer/weight_map.h"
#include "safetensors_builder.h"

#define EXPECT_HAS(text, part) \
  EXPECT_NE(std::string(text).find(part), std::string::npos) << "in: " << (text)

namespace deepinfer::testing {

using Shape = std::vector<std::int64_t>;

/// A checkpoint in a folder of its own, with a config.json if there is a text for it.
class Folder {
 public:
  explicit Folder(const std::string& config = "") {
    if (!config.empty()) write_file(dir_.path() / "config.json", config);
  }

  /// A tensor whose bytes are all `value`.
  Folder& add(const std::string& name, DType dtype, const Shape& shape, std::uint8_t value = 1) {
    std::int64_t bits = dtype_bits(dtype);
    for (std::int64_t side : shape) bits *= side;
    return bytes(name, dtype, shape, std::vector<std::uint8_t>(bits / 8, value));
  }

  Folder& bytes(const std::string& name, DType dtype, const Shape& shape,
                const std::vector<std::uint8_t>& values) {
    builder_.add(name, dtype, shape, values);
    return *this;
  }

  const std::filesystem::path& path() const { return dir_.path(); }

  Checkpoint open() {
    builder_.write(dir_.path() / "model.safetensors");
    return Checkpoint::open(dir_.path());
  }

  /// The reasons of all problems, one per line.
  std::string problems() {
    const Checkpoint checkpoint = open();
    const WeightMap map = WeightMap::build(checkpoint);
    std::string text;
    for (const MapProblem& problem : map.problems()) {
      text += problem.tensor + ": " + problem.reason + "\n";
    }
    return text;
  }

 private:
  TempDir dir_;
  SafetensorsBuilder builder_;
};

/// y = x . w^T for x of ones, m = 1.
inline std::vector<float> times_ones(const MappedWeight& weight) {
  const Weight prepared = Weight::prepare(weight.view, weight.name);
  const std::vector<float> x(static_cast<std::size_t>(prepared.k()), 1.0F);
  std::vector<float> y(static_cast<std::size_t>(prepared.n()), -1.0F);
  const Context context({.num_threads = 1, .isa = std::nullopt});
  linear(context, {.data = x.data(), .type = FloatType::kF32, .rows = 1, .columns = prepared.k()},
         prepared, {.data = y.data(), .type = FloatType::kF32, .rows = 1, .columns = prepared.n()});
  return y;
}

}  // namespace deepinfer::testing
