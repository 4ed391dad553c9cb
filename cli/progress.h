// A progress bar on stderr, only where somebody can see it move.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "note.h"

namespace deepinfer::cli {

/// Nothing is printed unless stderr is a terminal. Ends its line when it is destroyed.
class Progress {
 public:
  Progress(std::string label, std::int64_t total)
      : label_(std::move(label)), total_(total), shown_(isatty(STDERR_FILENO) != 0) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { finish(); }

  void update(std::int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    constexpr auto kInterval = std::chrono::milliseconds(100);  // faster than that is flicker
    if (!shown_ || (done < total_ && now - last_ < kInterval)) return;
    last_ = now;
    constexpr std::int64_t kWidth = 40;
    const double part = total_ > 0 ? static_cast<double>(done) / static_cast<double>(total_) : 1.0;
    const auto filled = static_cast<std::int64_t>(std::clamp(part, 0.0, 1.0) * kWidth);
    note("\r{} [{}{}] {:3.0f} %", label_, std::string(filled, '#'),
         std::string(kWidth - filled, '.'), 100.0 * part);
    open_ = true;
  }

  void finish() {
    if (open_) note("\n");
    open_ = false;
  }

 private:
  std::string label_;
  std::int64_t total_;
  bool shown_;
  bool open_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace deepinfer::cli
