// Feeds texts to the parser of shard indexes. Accepted file names must stay in the folder; a
// refusal must be one line of printable text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "checkpoint/message.h"
#include "checkpoint/shard_index.h"
#include "deepinfer/error.h"

namespace {

/// The fuzzer sees an abort; a broken promise is a crash here, and only here.
void require(bool promise) {
  if (!promise) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto map = deepinfer::checkpoint::parse_shard_index(text, "fuzz.json");
    require(!map.empty());
    for (const auto& [tensor, file] : map) {
      require(!file.empty() && file != "." && file != "..");
      require(file.find('/') == file.npos && file.find('\0') == file.npos);
    }
  } catch (const deepinfer::Error& error) {
    const std::string message = error.what();
    require(message == deepinfer::checkpoint::printable(message, message.size()));
    require(message.size() < 1000);
  }
  return 0;
}
