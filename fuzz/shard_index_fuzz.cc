// Feeds texts to the parser of shard indexes. Accepted file names must stay in the folder; a
// refusal must be one line of printable text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/shard_index.h"
#include "deepinfer/error.h"
#include "fuzz.h"
#include "json_mutator.h"

namespace {

using namespace deepinfer::fuzz;

constexpr std::string_view kWords[] = {"metadata", "total_size", "weight_map", "..",
                                       "a/b",      "a\\b",       ".",          "x.safetensors"};

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return mutate_json_input(data, size, max_size, seed, kWords);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Tally::instance().input();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto map = deepinfer::checkpoint::parse_shard_index(text, "fuzz.json");
    require(!map.empty());
    for (const auto& [tensor, file] : map) {
      require(!file.empty() && file != "." && file != "..");
      require(file.find('/') == file.npos && file.find('\\') == file.npos);
      require(file.find('\0') == file.npos);
    }
    Tally::instance().accepted(data, size);
  } catch (const deepinfer::Error& error) {
    require_message(error.what());
  }
  return 0;
}
