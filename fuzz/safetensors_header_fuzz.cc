// Feeds whole files to the safetensors parser. What it accepts must be safe to use: every view
// inside the buffer, none over another, sizes that fit the shape. What it refuses must be refused
// with one line of printable text.
//
//   safetensors_header_fuzz -dict=fuzz/json.dict fuzz/corpus/safetensors_header
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/message.h"
#include "checkpoint/safetensors.h"
#include "deepinfer/error.h"

namespace {

using deepinfer::checkpoint::Safetensors;

/// The fuzzer sees an abort; a broken promise is a crash here, and only here.
void require(bool promise) {
  if (!promise) std::abort();
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

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    check_views(deepinfer::checkpoint::parse_safetensors(file, "fuzz.safetensors"), file);
  } catch (const deepinfer::Error& error) {
    const std::string message = error.what();
    require(message == deepinfer::checkpoint::printable(message, message.size()));
    require(message.size() < 1000);
  }
  return 0;
}
