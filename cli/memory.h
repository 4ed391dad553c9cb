// Memory of this process, for reports.
#pragma once

#include <cstdint>

namespace deepinfer::cli {

/// RssAnon of /proc/self/status: resident private memory, without mapped files. 0 if unknown.
std::int64_t private_memory_bytes();

/// Gives memory that was freed after loading (JSON trees, mostly) back to the system.
void release_free_memory();

}  // namespace deepinfer::cli
