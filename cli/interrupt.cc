#include "interrupt.h"

#include <csignal>

namespace deepinfer::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t seen_signal = 0;

// It stays in place: `timeout` and some shells send the same signal twice.
void remember(int) { seen_signal = 1; }

}  // namespace

Interrupts::Interrupts() {
  for (const int signal : kSignals) std::signal(signal, remember);
}

Interrupts::~Interrupts() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool Interrupts::seen() noexcept { return seen_signal != 0; }

}  // namespace deepinfer::cli
