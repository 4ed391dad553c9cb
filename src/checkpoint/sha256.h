// SHA-256 (FIPS 180-4), to say which file a derived one was made from: the same text as `sha256sum`
// prints and as model hubs show beside each file.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <thread>

namespace deepinfer::checkpoint {

class Sha256 {
 public:
  void add(std::span<const std::byte> bytes) noexcept;

  /// 64 hexadecimal digits. Nothing can be added afterwards.
  std::string finish();

 private:
  void add_block(const std::byte* block) noexcept;

  static constexpr std::size_t kBlock = 64;
  std::array<std::uint32_t, 8> state_ = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                         0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  std::array<std::byte, kBlock> pending_{};
  std::uint64_t num_bytes_ = 0;
};

/// The digest of a file, computed beside other work by a thread of its own.
class FileDigest {
 public:
  static constexpr std::size_t kLength = 64;

  explicit FileDigest(std::filesystem::path path);
  FileDigest(const FileDigest&) = delete;
  FileDigest& operator=(const FileDigest&) = delete;
  ~FileDigest();  // gives up if the digest is not wanted any more

  /// Waits for the digest. Throws what reading the file threw.
  std::string get();

 private:
  std::string digest_of(const std::filesystem::path& path) const;

  std::atomic<bool> unwanted_{false};
  std::string digest_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace deepinfer::checkpoint
