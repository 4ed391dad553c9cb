// Packed weights, quantized activations and guarded memory for tests of module.h.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "deepinfer/error.h"
#include "deepinfer/linear.h"
#include "deepinfer/module.h"
#include "formats/bf16.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"
#include "random_data.h"

namespace deepinfer::test {

/// The message of the Error(kInvalidArgument) that `call` throws; "accepted" if it throws none.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "another kind of error";
  }
  return "accepted";
}

/// Bytes that end where an unreadable page begins; lock() makes them unreadable as well.
class GuardedBytes {
 public:
  explicit GuardedBytes(const std::vector<std::uint8_t>& content) : size_(content.size()) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size_ + page - 1) / page * page;
    base_ = static_cast<std::uint8_t*>(
        mmap(nullptr, mapped_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::runtime_error("mmap failed");
    protect(base_ + mapped_, page, PROT_NONE);
    if (size_ != 0) std::memcpy(data(), content.data(), size_);
    all_ = mapped_ + page;
  }
  ~GuardedBytes() { munmap(base_, all_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::uint8_t* data() const { return base_ + (mapped_ - size_); }
  void lock() const { protect(base_, mapped_, PROT_NONE); }
  void unlock() const { protect(base_, mapped_, PROT_READ); }

 private:
  static void protect(std::uint8_t* at, std::size_t bytes, int mode) {
    if (bytes != 0 && mprotect(at, bytes, mode) != 0) throw std::runtime_error("mprotect failed");
  }

  std::size_t size_;
  std::size_t mapped_ = 0;
  std::size_t all_ = 0;
  std::uint8_t* base_ = nullptr;
};

/// A weight in the module's form, with the memory it views.
struct PackedWeight {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;  // [groups * n, width]
  std::int64_t width = 0;            // scale bytes of a row, padding included
  PackedWeightView view;

  PreparedWeight prepare() const { return PreparedWeight::prepare(view, "w"); }

  /// One group as published: a grid of 32 x 32 is every 32nd row of the packed scales.
  WeightView published(std::int64_t group = 0) const {
    const bool fp4 = view.element == Element::kE2m1;
    WeightView v;
    v.element = view.element;
    v.codes = static_cast<const std::uint8_t*>(view.codes) +
              group * view.n * code_row_bytes(view.element, view.k);
    v.n = view.n;
    v.k = view.k;
    v.scale_type = ScaleType::kE8m0;
    v.block_n = fp4 ? 1 : 32;
    v.scales = scales.data() + group * view.n * width;
    v.scale_rows = (view.n + v.block_n - 1) / v.block_n;
    v.scale_columns = (view.k + 31) / 32;
    v.scale_stride = v.block_n * width;
    return v;
  }
};

/// Random codes without NaN, scales that differ from block to block, `padding` columns of 255.
inline PackedWeight packed_weight(Random& random, Element element, std::int64_t n, std::int64_t k,
                                  std::optional<std::int64_t> groups = std::nullopt,
                                  std::int64_t padding = 0, DType dtype = DType::kU8) {
  PackedWeight w;
  const std::int64_t rows = groups.value_or(1) * n;
  const std::int64_t columns = (k + 31) / 32;
  w.width = columns + padding;
  if (dtype == DType::kI16) w.width += w.width % 2;
  w.codes = random.bytes(static_cast<std::size_t>(rows * code_row_bytes(element, k)));
  if (element == Element::kE4m3fn) {
    for (std::uint8_t& c : w.codes) c = (c & 0x7F) == 0x7F ? std::uint8_t{0x70} : c;
  }
  w.scales.assign(static_cast<std::size_t>(rows * w.width), 255);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const bool copied = element == Element::kE4m3fn && r % n % 32 != 0;
      const auto at = static_cast<std::size_t>(r * w.width + c);
      w.scales[at] = copied ? w.scales[at - static_cast<std::size_t>(w.width)]
                            : static_cast<std::uint8_t>(110 + random.below(30));
    }
  }
  w.view = {element, w.codes.data(), groups, n, k, {w.scales.data(), dtype, n, w.width}};
  if (dtype == DType::kI16) w.view.scales.columns = w.width / 2;
  return w;
}

/// Activations [m, k] as e4m3fn codes with one e8m0 scale per 32 columns.
struct Quantized {
  std::int64_t m = 0;
  std::int64_t k = 0;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;

  QuantizedView view() const {
    QuantizedView v;
    v.codes = codes.data();
    v.rows = m;
    v.columns = k;
    v.scales = scales.data();
    v.scale_rows = m;
    v.scale_columns = (k + 31) / 32;
    return v;
  }

  /// decode(code) * scale, which bf16 holds exactly.
  std::vector<std::uint16_t> values() const {
    std::vector<std::uint16_t> out;
    const std::int64_t columns = (k + 31) / 32;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t i = 0; i < k; ++i) {
        const float scale =
            formats::decode_e8m0(scales[static_cast<std::size_t>(r * columns + i / 32)]);
        const float code = formats::decode_e4m3fn(codes[static_cast<std::size_t>(r * k + i)]);
        out.push_back(formats::encode_bf16(code * scale));
      }
    }
    return out;
  }
};

/// docs/determinism.md, "Quantizing activations", in plain loops.
inline Quantized quantize(const std::vector<float>& x, std::int64_t m, std::int64_t k, int limit) {
  Quantized q = {m, k, std::vector<std::uint8_t>(x.size()), {}};
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t begin = 0; begin < k; begin += 32) {
      const std::int64_t end = std::min(k, begin + 32);
      float amax = 1e-4F;
      bool bad = false;
      for (std::int64_t i = r * k + begin; i < r * k + end; ++i) {
        const float v = std::fabs(x[static_cast<std::size_t>(i)]);
        bad |= !std::isfinite(v);
        amax = std::max(amax, v);
      }
      int exponent = -126;
      while (!bad && static_cast<double>(amax) > std::ldexp(limit, exponent)) ++exponent;
      bad |= exponent > 119;
      if (bad) exponent = 0;
      q.scales.push_back(static_cast<std::uint8_t>(exponent + 127));
      for (auto i = static_cast<std::size_t>(r * k + begin);
           i < static_cast<std::size_t>(r * k + end); ++i) {
        const double quotient = std::ldexp(static_cast<double>(x[i]), -exponent);
        q.codes[i] =
            bad ? std::uint8_t{0x7F} : formats::encode_e4m3fn(static_cast<float>(quotient));
      }
    }
  }
  return q;
}

/// bf16 values [count] with exponents spread over 2^-spread .. 2^spread.
inline std::vector<std::uint16_t> spread_bf16(Random& random, std::int64_t count, int spread) {
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count));
  for (std::uint16_t& v : x) v = random.bf16(spread);
  return x;
}

inline std::vector<float> widened(const std::vector<std::uint16_t>& x) {
  std::vector<float> out;
  for (const std::uint16_t v : x) out.push_back(formats::decode_bf16(v));
  return out;
}

inline MatrixView rows_of(const std::vector<std::uint16_t>& x, std::int64_t m, std::int64_t k) {
  return {x.data(), FloatType::kBf16, m, k, 0};
}

inline MatrixView rows_of(const std::vector<float>& x, std::int64_t m, std::int64_t k) {
  return {x.data(), FloatType::kF32, m, k, 0};
}

/// An output of NaNs, so that what was not written shows.
struct Output16 {
  std::vector<std::uint16_t> bits;
  MutableMatrixView view;

  Output16(std::int64_t m, std::int64_t n)
      : bits(static_cast<std::size_t>(m * n), 0xFFFF),
        view{bits.data(), FloatType::kBf16, m, n, 0} {}
};

struct Output32 {
  std::vector<std::uint32_t> bits;
  MutableMatrixView view;

  Output32(std::int64_t m, std::int64_t n)
      : bits(static_cast<std::size_t>(m * n), 0x7FABCDEFU),
        view{bits.data(), FloatType::kF32, m, n, 0} {}
};

/// The bits of linear() in f32: those that kernels_test and the oracle hold.
inline std::vector<std::uint32_t> linear_bits(const Context& context, const MatrixView& x,
                                              const WeightView& w,
                                              Activations activations = Activations::kAsIs) {
  Output32 y(x.rows, w.n);
  linear(context, x, Weight::prepare(w, "w"), y.view, activations);
  return y.bits;
}

inline std::vector<std::uint16_t> stored_bf16(const std::vector<std::uint32_t>& bits) {
  std::vector<std::uint16_t> out;
  for (const std::uint32_t b : bits) out.push_back(formats::store_bf16(formats::float_of(b)));
  return out;
}

}  // namespace deepinfer::test
