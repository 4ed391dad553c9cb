// Words for people on standard error. Never throws: nothing that ends a command may fail because
// nobody can read it.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace deepinfer::cli {

template <class... Arguments>
void note(fmt::format_string<Arguments...> text, Arguments&&... arguments) noexcept {
  try {
    std::fputs(fmt::format(text, std::forward<Arguments>(arguments)...).c_str(), stderr);
    std::fflush(stderr);
  } catch (...) {  // out of memory: say nothing
  }
}

}  // namespace deepinfer::cli
