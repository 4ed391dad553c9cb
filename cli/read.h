// Reading a whole stream.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "deepinfer/error.h"

namespace deepinfer::cli {

/// Everything that is left of `stream`; throws Error(kBadInput) with `name` and the reason.
inline std::string read_stream(const std::string& name, std::FILE* stream) {
  std::string text;
  char buffer[1 << 16];
  errno = 0;
  for (std::size_t size = 0; (size = std::fread(buffer, 1, sizeof(buffer), stream)) > 0;) {
    text.append(buffer, size);
  }
  if (std::ferror(stream) != 0) {
    throw Error(ErrorCode::kBadInput, name + ": cannot be read: " + std::strerror(errno));
  }
  return text;
}

}  // namespace deepinfer::cli
