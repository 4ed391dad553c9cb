// zoo_values CHECKPOINT OUT [PATTERN=ROWS]: writes every weight of a checkpoint as raw f32 values
// [groups, n, k] to OUT/<number>.f32, and prints what was mapped as one JSON object. test_zoo.py
// compares the values with its own.
//
// Values come out of the kernels, as y = I . w^T: what a model would compute with. The identity
// makes each a single rounded product of a code and its scale.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/linear.h"
#include "deepinfer/weight_map.h"
#include "formats/e2m1.h"
#include "formats/e4m3fn.h"

namespace {

using deepinfer::MappedWeight;
using deepinfer::WeightView;

constexpr std::uint16_t kOneBf16 = 0x3F80;

/// One matrix [n, k].
std::vector<float> through_kernels(const deepinfer::Context& context, const WeightView& view,
                                   const std::string& name) {
  const deepinfer::Weight weight = deepinfer::Weight::prepare(view, name);
  const auto n = static_cast<std::size_t>(view.n);
  const auto k = static_cast<std::size_t>(view.k);
  std::vector<std::uint16_t> identity(k * k, 0);
  for (std::size_t i = 0; i < k; ++i) identity[i * k + i] = kOneBf16;
  std::vector<float> y(k * n);
  linear(context, {.data = identity.data(), .rows = view.k, .columns = view.k}, weight,
         {.data = y.data(), .type = deepinfer::FloatType::kF32, .rows = view.k, .columns = view.n},
         deepinfer::Activations::kAsIs);
  std::vector<float> out(n * k);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) out[i * k + j] = y[j * n + i];
  }
  return out;
}

/// NVFP4, for which there is no kernel: from the bytes that the map points at.
std::vector<float> by_hand(const MappedWeight& mapped) {
  const WeightView& view = mapped.view;
  const auto* codes = static_cast<const std::uint8_t*>(view.codes);
  const auto* scales = static_cast<const std::uint8_t*>(view.scales);
  float second = 0;
  std::memcpy(&second, mapped.tensor_scale->view.data, sizeof(second));
  std::vector<float> out;
  for (std::int64_t i = 0; i < view.n; ++i) {
    for (std::int64_t j = 0; j < view.k; ++j) {
      const std::uint8_t pair = codes[(i * view.k + j) / 2];
      const float code = deepinfer::formats::decode_e2m1(j % 2 == 0 ? pair & 15 : pair >> 4);
      const std::uint8_t scale = scales[i * view.scale_columns + j / view.block_k];
      const float value = code * deepinfer::formats::decode_e4m3fn(scale);  // exact
      out.push_back(mapped.tensor_scale_divides ? value / second : value * second);
    }
  }
  return out;
}

std::vector<float> values_of(const deepinfer::Context& context, const MappedWeight& mapped) {
  if (mapped.format == "nvfp4") return by_hand(mapped);
  std::vector<float> out;
  for (std::int64_t g = 0; mapped.cannot_run.empty() && g < mapped.groups; ++g) {
    const std::vector<float> one = through_kernels(context, group_view(mapped, g), mapped.name);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

int run(const std::vector<std::string>& arguments) {
  deepinfer::MapOptions options;
  if (arguments.size() > 2) {
    const std::size_t equals = arguments[2].rfind('=');
    options.segmentations.push_back(
        {arguments[2].substr(0, equals), std::stoll(arguments[2].substr(equals + 1))});
  }
  const auto checkpoint = deepinfer::Checkpoint::open(arguments.at(0));
  const auto map = deepinfer::WeightMap::build(checkpoint, options);
  const deepinfer::Context context({.num_threads = 1, .isa = std::nullopt});
  nlohmann::json json = {{"weights", nlohmann::json::array()},
                         {"problems", nlohmann::json::object()}};
  for (const MappedWeight& mapped : map.weights()) {
    const std::string file =
        (std::filesystem::path(arguments.at(1)) / std::to_string(json["weights"].size())).string() +
        ".f32";
    const std::vector<float> values = values_of(context, mapped);
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(values.data()),
                 static_cast<std::streamsize>(values.size() * sizeof(float)));
    json["weights"].push_back({{"name", mapped.name},
                               {"format", mapped.format},
                               {"producer", mapped.producer},
                               {"shape", {mapped.groups, mapped.view.n, mapped.view.k}},
                               {"gate_up", mapped.row_order == deepinfer::RowOrder::kGateUp},
                               {"cannot_run", mapped.cannot_run},
                               {"file", file}});
  }
  for (const auto& problem : map.problems()) json["problems"][problem.tensor] = problem.reason;
  std::puts(json.dump(1).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
