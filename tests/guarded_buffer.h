// Memory between two pages that fault when they are touched, so that a read or a write one byte
// past a buffer ends the test on the spot, whatever compiled the code that did it.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace deepinfer::test {

/// Which end of a buffer touches a guard page; pages are larger than buffers, so it is one or the
/// other.
enum class Placement { kEndsAtGuard, kBeginsAtGuard };

class GuardedBuffer {
 public:
  GuardedBuffer(std::size_t size, Placement placement) : size_(size) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    inner_ = (size + page - 1) / page * page;
    mapped_ = inner_ + 2 * page;
    void* base = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::uint8_t*>(base);
    begin_ = base_ + page;
    if (inner_ != 0) {
      if (mprotect(begin_, inner_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      std::memset(begin_, kSlack, inner_);
    }
    data_ = placement == Placement::kEndsAtGuard ? begin_ + (inner_ - size) : begin_;
  }

  GuardedBuffer(const void* data, std::size_t size, Placement placement)
      : GuardedBuffer(size, placement) {
    if (size != 0) std::memcpy(data_, data, size);
  }

  GuardedBuffer(GuardedBuffer&& other) noexcept
      : size_(other.size_),
        inner_(other.inner_),
        mapped_(other.mapped_),
        base_(std::exchange(other.base_, nullptr)),
        begin_(other.begin_),
        data_(other.data_) {}
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;

  ~GuardedBuffer() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// From here on a write faults.
  void make_read_only() const {
    if (inner_ != 0) mprotect(begin_, inner_, PROT_READ);
  }

  /// Whether nobody wrote into the rest of the page, on the side without a guard.
  bool slack_is_untouched() const {
    const auto untouched = [](std::uint8_t byte) { return byte == kSlack; };
    return std::all_of(begin_, data_, untouched) &&
           std::all_of(data_ + size_, begin_ + inner_, untouched);
  }

 private:
  static constexpr std::uint8_t kSlack = 0xFF;  // NaN as bf16, f32 and e8m0

  std::size_t size_;
  std::size_t inner_ = 0;
  std::size_t mapped_ = 0;
  std::uint8_t* base_ = nullptr;
  std::uint8_t* begin_ = nullptr;  // of the pages that may be touched
  std::uint8_t* data_ = nullptr;
};

/// Says which case ran when a guard page was touched; whoever handled the signal before (a
/// sanitizer, or nobody) then ends the program.
class FaultReporter {
 public:
  FaultReporter() {
    struct sigaction action = {};
    action.sa_handler = [](int) {
      static_cast<void>(!write(STDERR_FILENO, text().data(), text().size()));
      sigaction(SIGSEGV, &before(),
                nullptr);  // the access is repeated and meets the former handler
    };
    sigaction(SIGSEGV, &action, &before());
  }
  FaultReporter(const FaultReporter&) = delete;
  FaultReporter& operator=(const FaultReporter&) = delete;
  ~FaultReporter() { sigaction(SIGSEGV, &before(), nullptr); }

  static void running(const std::string& name) { text() = "\nfault in: " + name + "\n"; }

 private:
  static std::string& text() {
    static std::string value;
    return value;
  }
  static struct sigaction& before() {
    static struct sigaction value = {};
    return value;
  }
};

}  // namespace deepinfer::test
