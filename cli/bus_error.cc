// A signal handler may use system calls, and memory that is there already: no printf, no iostream,
// no allocation. The system knows all mappings: /proc/self/maps has lines of the form
//
//   7f2a10000000-7f2a10200000 r--p 00001000 fe:01 1234567      /models/a/model.safetensors
//   begin        end (hex)    mode offset   device inode       path, with '\n' as "\012"
#include "bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdint>
#include <string_view>

#include "commands.h"

namespace deepinfer::cli {
namespace {

constexpr std::size_t kLongestLine = PATH_MAX + 128;

/// Lines of a file, read with nothing but system calls. What is too long is cut.
class Lines {
 public:
  explicit Lines(const char* path) : fd_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// False at the end.
  bool next(std::string_view& line) {
    std::size_t length = 0;
    while (begin_ < end_ || fill()) {
      const char c = read_[begin_++];
      if (c == '\n') {
        line = {line_.data(), length};
        return true;
      }
      if (length < line_.size()) line_[length++] = c;
    }
    return false;
  }

 private:
  bool fill() {
    const ssize_t count = fd_ < 0 ? 0 : ::read(fd_, read_.data(), read_.size());
    begin_ = 0;
    end_ = count > 0 ? static_cast<std::size_t>(count) : 0;
    return end_ > 0;
  }

  int fd_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::array<char, 4096> read_;
  std::array<char, kLongestLine> line_;
};

/// Takes a hexadecimal number and the character after it off the front of `line`.
std::uint64_t take_hex(std::string_view& line) {
  std::uint64_t value = 0;
  constexpr int kHex = 16;
  const char* end = line.data() + line.size();
  const char* stop = std::from_chars(line.data(), end, value, kHex).ptr;
  line.remove_prefix(static_cast<std::size_t>(stop - line.data()) + (stop == end ? 0 : 1));
  return value;
}

/// The message, put together in memory that is there already.
class Message {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (size_ < text_.size()) text_[size_++] = byte < ' ' || byte == 0x7F ? '?' : c;
    }
  }

  void add(std::uint64_t number) {
    std::array<char, 20> digits;  // 2^64 has 20
    const char* end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    add({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }

  void send() {
    text_[size_++] = '\n';
    // Nothing can be done about a standard error that takes no message.
    static_cast<void>(!::write(STDERR_FILENO, text_.data(), size_));
  }

 private:
  static constexpr std::size_t kWords = 128;
  std::size_t size_ = 0;
  std::array<char, kLongestLine + kWords> text_;
};

/// Prints which file lies at `address`; false if there is none.
bool name_file(std::uint64_t address) {
  Lines lines("/proc/self/maps");
  for (std::string_view line; lines.next(line);) {
    const std::uint64_t begin = take_hex(line);
    const std::uint64_t end = take_hex(line);
    const std::size_t path = line.find('/');
    if (address < begin || address >= end || path == line.npos) continue;
    line.remove_prefix(line.find(' ') + 1);  // the mode
    const std::uint64_t offset = take_hex(line);
    Message message;
    message.add("deepinfer: ");
    message.add(line.substr(line.find('/')));
    message.add(": cut short while in use, or its disk failed: byte ");
    message.add(offset + (address - begin));
    message.add(" cannot be read any more");
    message.send();
    return true;
  }
  return false;
}

void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  static std::atomic_flag seen = ATOMIC_FLAG_INIT;
  while (seen.test_and_set()) ::pause();  // another thread is at it, and will end the process
  if (info->si_code == BUS_ADRERR && name_file(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    ::_exit(kBadInput);
  }
  std::signal(signal, SIG_DFL);  // the instruction that failed will fail again
}

}  // namespace

void report_bus_errors() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace deepinfer::cli
