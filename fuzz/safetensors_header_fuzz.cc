// Feeds whole files to the safetensors parser. What it accepts must be safe to use: every view
// inside the buffer, none over another, sizes that fit the shape. What it refuses must be refused
// with one line of printable text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "deepinfer/error.h"
#include "fuzz.h"
#include "json_mutator.h"

namespace {

using namespace deepinfer::fuzz;
using deepinfer::checkpoint::Safetensors;

using Json = nlohmann::ordered_json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kWords[] = {"__metadata__", "dtype",   "shape",   "data_offsets", "F4",
                                       "F6_E2M3",      "F8_E4M3", "F8_E8M0", "BF16",         "F32",
                                       "U8",           "I64",     "BOOL"};

/// The bytes of an entry, where it is well formed and small.
std::optional<std::uint64_t> entry_bytes(const Json& entry) {
  constexpr std::uint64_t kLargest = 2048;
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array()) {
    return std::nullopt;
  }
  const auto dtype = deepinfer::dtype_from_name(entry["dtype"].get<std::string>());
  if (!dtype) return std::nullopt;
  auto bits = static_cast<std::uint64_t>(deepinfer::dtype_bits(*dtype));
  for (const Json& side : entry["shape"]) {
    if (!side.is_number_unsigned() || side.get<std::uint64_t>() > kLargest) return std::nullopt;
    bits *= side.get<std::uint64_t>();
    if (bits > 8 * kLargest) return std::nullopt;
  }
  return bits / 8;
}

/// Gives the entries the ranges that their shapes ask for; returns the bytes of all.
std::size_t repair_offsets(std::string& header) {
  Json json = Json::parse(header, nullptr, false);
  if (!json.is_object()) return 0;
  std::uint64_t begin = 0;
  for (auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const auto bytes = entry_bytes(entry);
    if (!bytes) continue;
    entry["data_offsets"] = {begin, begin + *bytes};
    begin += *bytes;
  }
  header = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return static_cast<std::size_t>(begin);
}

void check_views(const Safetensors& parsed, std::span<const std::byte> file) {
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  std::vector<std::string> names;
  for (const auto& [name, view] : parsed.tensors) {
    const std::byte* end = view.data + view.size_bytes;
    require(view.data >= file.data() && end <= file.data() + file.size());
    std::uint64_t bits = static_cast<std::uint64_t>(deepinfer::dtype_bits(view.dtype));
    for (const std::int64_t dim : view.shape) {
      require(dim >= 0);
      bits *= static_cast<std::uint64_t>(dim);
    }
    require(bits == 8 * view.size_bytes);
    ranges.emplace_back(view.data, end);
    names.push_back(name);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    require(ranges[i - 1].second == ranges[i].first);
  }
  if (!ranges.empty()) require(ranges.back().second == file.data() + file.size());
  std::sort(names.begin(), names.end());
  require(std::adjacent_find(names.begin(), names.end()) == names.end());
}

}  // namespace

/// Mutates the header, and mostly makes its length and ranges fit again.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  Random random(seed);
  std::string file(reinterpret_cast<const char*>(data), size);
  if (below(random, 2) == 0) Tally::instance().take_accepted(random(), file);
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  if (file.size() < kLengthBytes || length > file.size() - kLengthBytes || below(random, 16) == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string header = file.substr(kLengthBytes, length);
  std::size_t data_bytes = file.size() - kLengthBytes - length;
  mutate_json(header, max_size - kLengthBytes, random, kWords);
  if (below(random, 4) == 0) data_bytes = repair_offsets(header);
  if (kLengthBytes + header.size() + data_bytes > max_size) return 0;  // no such input
  length = header.size();
  std::memcpy(data, &length, kLengthBytes);
  std::memcpy(data + kLengthBytes, header.data(), header.size());
  std::memset(data + kLengthBytes + header.size(), '1', data_bytes);
  return kLengthBytes + header.size() + data_bytes;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Tally::instance().input();
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    check_views(deepinfer::checkpoint::parse_safetensors(file, "fuzz.safetensors"), file);
    Tally::instance().accepted(data, size);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
  }
  return 0;
}
