// What all fuzz targets share: promises, and a count of the inputs that got past the first check.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/message.h"

namespace deepinfer::fuzz {

/// The fuzzer sees an abort; a broken promise is a crash in a target, and only there.
inline void require(bool promise) {
  if (!promise) std::abort();
}

/// Messages are one line of printable UTF-8 of bounded length, whatever the input holds.
inline void require_message(const std::string& message) {
  constexpr std::size_t kLongest = 2000;
  require(message == checkpoint::printable(message, message.size()));
  require(message.size() < kLongest);
}

/// Inputs, and those that were accepted as a whole: a fuzzer whose inputs all fail at the first
/// check tests nothing else. Printed when the target ends.
///
/// Remembers some of the accepted ones, for mutators to start from: the corpus fills with broken
/// inputs, since every way to refuse one is new coverage.
class Tally {
 public:
  static Tally& instance() {
    static Tally tally;
    return tally;
  }
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  ~Tally() {
    std::fprintf(stderr, "accepted: %llu of %llu inputs (%.1f %%)\n",
                 static_cast<unsigned long long>(accepted_),
                 static_cast<unsigned long long>(inputs_),
                 100.0 * static_cast<double>(accepted_) / static_cast<double>(inputs_));
  }

  void input() { ++inputs_; }

  void accepted(const std::uint8_t* data, std::size_t size) {
    std::string& slot = recent_[accepted_++ % recent_.size()];
    if (size <= kLargest) slot.assign(reinterpret_cast<const char*>(data), size);
  }

  /// Replaces `text` by an input that was accepted, if there is one.
  void take_accepted(std::size_t choice, std::string& text) const {
    const std::string& slot = recent_[choice % recent_.size()];
    if (!slot.empty()) text = slot;
  }

 private:
  // Room from the start: libFuzzer looks for leaks whenever an input leaves more memory in use.
  Tally() {
    for (std::string& slot : recent_) slot.reserve(kLargest);
  }

  static constexpr std::size_t kLargest = 4096;

  std::uint64_t inputs_ = 0;
  std::uint64_t accepted_ = 0;
  std::array<std::string, 64> recent_;
};

}  // namespace deepinfer::fuzz
