// A growing buffer on cache-line boundaries. Content is lost when it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace deepinfer {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// Makes room for `bytes`; throws std::bad_alloc.
  void reserve(std::int64_t bytes) {
    if (bytes <= size_) return;
    data_.reset();
    size_ = 0;
    data_.reset(static_cast<std::byte*>(
        ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment})));
    size_ = bytes;
  }

  std::byte* data() const noexcept { return data_.get(); }

  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_.get());
  }

  std::int64_t size() const noexcept { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept {
      ::operator delete (p, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace deepinfer
