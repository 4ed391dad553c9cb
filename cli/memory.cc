#include "memory.h"

#include <malloc.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace deepinfer::cli {

std::int64_t private_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::atoll(line.c_str() + 8) * 1024;
  }
  return 0;
}

void release_free_memory() { malloc_trim(0); }

}  // namespace deepinfer::cli
