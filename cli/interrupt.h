// Ctrl-C and its relatives, the same in every command: the first signal ends the work in an orderly
// way at the next step, and the command returns kInterrupted.
#pragma once

namespace deepinfer::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP are only remembered.
class Interrupts {
 public:
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  /// Whether one of them has come.
  static bool seen() noexcept;
};

}  // namespace deepinfer::cli
