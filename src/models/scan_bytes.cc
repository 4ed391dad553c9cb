#include "models/scan_bytes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <vector>

#include "formats/bits.h"
#include "formats/e4m3fn.h"
#include "formats/e8m0.h"

namespace deepinfer::models {
namespace {

using Role = ScannedTensor::Role;

constexpr std::int64_t kStripBytes = 4096;  // fits in L1 beside its copy
constexpr std::int64_t kScaleRows = 32;     // rows whose scales are compared

Tally& of(Tallies& tallies, FindingKind kind) { return tallies[static_cast<std::size_t>(kind)]; }

/// Calls look(elements, number of the first) for strips of an aligned copy of the bytes: tensors
/// may lie at any address.
template <class T, class Look>
void for_strips(const std::byte* data, std::int64_t begin, std::int64_t end, const Look& look) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  std::array<T, kStripBytes / kSize> strip;
  for (std::int64_t at = begin; at < end; at += kStripBytes) {
    const std::int64_t bytes = std::min(kStripBytes, end - at);
    std::memcpy(strip.data(), data + at, static_cast<std::size_t>(bytes));
    look(std::span<const T>(strip).first(static_cast<std::size_t>(bytes / kSize)), at / kSize);
  }
}

/// Elements whose bits under `mask` are `least` or more: NaN, or infinite if they are `least` and
/// the type `has_infinity`. The loop that vectorizes only takes the largest: signed numbers, since
/// that is what SSE2 compares, and no bit of `mask` is the sign.
template <class T>
void find_at_least(const std::byte* data, std::int64_t begin, std::int64_t end, T mask, T least,
                   bool has_infinity, Tally& tally) {
  for_strips<T>(data, begin, end, [&](std::span<const T> strip, std::int64_t number) {
    T largest = 0;
    for (const T element : strip) {
      largest = std::max(largest, static_cast<T>(element & mask));
    }
    if (largest < least) return;
    for (const T element : strip) {
      const auto magnitude = static_cast<T>(element & mask);
      if (magnitude >= least) {
        tally.add(number, static_cast<std::make_unsigned_t<T>>(element));
        tally.infinite += has_infinity && magnitude == least ? 1 : 0;
      }
      ++number;
    }
  });
}

/// How rows of a grid of bytes end in padding.
struct Padding {
  std::int64_t columns = 1;
  std::int64_t stride = 1;
  bool has(std::int64_t number) const { return number % stride >= columns; }
};

void find_byte(const std::byte* data, std::int64_t begin, std::int64_t end, std::uint8_t wanted,
               Tally& tally, Padding padding = {}) {
  for_strips<std::uint8_t>(data, begin, end, [&](auto strip, std::int64_t number) {
    std::uint8_t nearest = 0xFF;  // 0 where one is equal
    for (const std::uint8_t byte : strip) {
      nearest = std::min(nearest, static_cast<std::uint8_t>(byte ^ wanted));
    }
    if (nearest != 0) return;
    for (const std::uint8_t byte : strip) {
      if (byte == wanted && !padding.has(number)) tally.add(number, byte);
      ++number;
    }
  });
}

/// Numbers of a published data type: those that are NaN or infinite.
void find_not_finite(const TensorView& v, std::int64_t begin, std::int64_t end, Tallies& tallies) {
  Tally& codes = of(tallies, FindingKind::kNanCode);
  Tally& numbers = of(tallies, FindingKind::kNotFinite);
  constexpr std::uint8_t kFnuzNan = 0x80;
  switch (v.dtype) {
    case DType::kF8E4m3:
      return find_at_least<std::int8_t>(v.data, begin, end, 0x7F, formats::kE4m3fnNan, false,
                                        codes);
    case DType::kF8E5m2:
      return find_at_least<std::int8_t>(v.data, begin, end, 0x7F, 0x7C, true, codes);
    case DType::kF8E4m3Fnuz:
    case DType::kF8E5m2Fnuz:
      return find_byte(v.data, begin, end, kFnuzNan, codes);
    case DType::kF8E8m0:
      find_byte(v.data, begin, end, formats::kE8m0Nan, of(tallies, FindingKind::kNanScale));
      return find_byte(v.data, begin, end, 0, of(tallies, FindingKind::kZeroScale));
    case DType::kF16:
      return find_at_least<std::int16_t>(v.data, begin, end, 0x7FFF, 0x7C00, true, numbers);
    case DType::kBf16:
      return find_at_least<std::int16_t>(v.data, begin, end, 0x7FFF, 0x7F80, true, numbers);
    case DType::kF32:
    case DType::kC64:  // two f32
      return find_at_least<std::int32_t>(v.data, begin, end, 0x7FFFFFFF, 0x7F800000, true, numbers);
    case DType::kF64:
      return find_at_least<std::int64_t>(v.data, begin, end, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000,
                                         true, numbers);
    default:  // whole numbers, and floats that have neither
      return;
  }
}

/// Scales of a number type, by the bits of its `largest` finite number and of its least NaN.
template <class T>
void find_bad_numbers(const std::byte* data, std::int64_t begin, std::int64_t end, T largest, T nan,
                      Tallies& tallies) {
  constexpr T kMagnitude = static_cast<T>(~T{0}) >> 1;
  for_strips<T>(data, begin, end, [&](std::span<const T> strip, std::int64_t number) {
    for (const T bits : strip) {
      const T magnitude = bits & kMagnitude;
      if (magnitude >= nan) {
        of(tallies, FindingKind::kNanScale).add(number, bits);
      } else if (magnitude == 0) {
        of(tallies, FindingKind::kZeroScale).add(number, bits);
      } else if (bits > largest) {  // infinite, or negative
        Tally& tally = of(tallies, FindingKind::kBadScale);
        tally.add(number, bits);
        tally.infinite += magnitude > largest ? 1 : 0;
        tally.negative += bits != magnitude ? 1 : 0;
      }
      ++number;
    }
  });
}

void find_bad_scales(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                     Tallies& tallies) {
  const std::byte* data = scanned.tensor->view.data;
  const WeightView& v = scanned.weight->view;
  if (scanned.role == Role::kScales && v.scale_type == ScaleType::kE8m0) {  // in any data type
    const Padding padding = {v.scale_columns, v.scale_stride};
    find_byte(data, begin, end, formats::kE8m0Nan, of(tallies, FindingKind::kNanScale), padding);
    return find_byte(data, begin, end, 0, of(tallies, FindingKind::kZeroScale), padding);
  }
  switch (scanned.tensor->view.dtype) {
    case DType::kF8E4m3:
      return find_bad_numbers<std::uint8_t>(data, begin, end, 0x7E, 0x7F, tallies);
    case DType::kF16:
      return find_bad_numbers<std::uint16_t>(data, begin, end, 0x7BFF, 0x7C01, tallies);
    case DType::kBf16:
      return find_bad_numbers<std::uint16_t>(data, begin, end, 0x7F7F, 0x7F81, tallies);
    case DType::kF32:
      return find_bad_numbers<std::uint32_t>(data, begin, end, 0x7F7FFFFF, 0x7F800001, tallies);
    default:  // no layout has others
      return;
  }
}

/// Scales per row, all of one matrix: columns of 32 rows in which they are not all equal.
void find_differing_rows(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                         Tally& tally) {
  const std::int64_t columns = scanned.weight->view.scale_columns;
  const std::int64_t scale_bytes = scanned.scale_size();
  const std::int64_t row_bytes = scanned.weight->view.scale_stride * scale_bytes;
  const std::byte* data = scanned.tensor->view.data;
  std::vector<std::byte> differs(static_cast<std::size_t>(row_bytes));
  for (std::int64_t group = begin; group < end; group += kScaleRows * row_bytes) {
    std::fill(differs.begin(), differs.end(), std::byte{0});
    const std::int64_t stop = std::min(end, group + kScaleRows * row_bytes);
    for (std::int64_t row = group + row_bytes; row < stop; row += row_bytes) {
      for (std::int64_t i = 0; i < row_bytes; ++i) {
        differs[static_cast<std::size_t>(i)] |= data[group + i] ^ data[row + i];
      }
    }
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto* at = differs.data() + column * scale_bytes;
      if (std::all_of(at, at + scale_bytes, [](std::byte b) { return b == std::byte{0}; })) {
        continue;
      }
      const std::byte* first = data + group + column * scale_bytes;
      const std::byte* other = first + row_bytes;
      const auto size = static_cast<std::size_t>(scale_bytes);
      while (std::memcmp(first, other, size) == 0) other += row_bytes;
      std::uint64_t bits = 0;
      std::memcpy(&bits, other, size);
      tally.add((other - data) / scale_bytes, bits);
    }
  }
}

/// Calls look(begin, end) for the part of each matrix of a stack that lies in [begin, end).
template <class Look>
void for_matrices(std::int64_t begin, std::int64_t end, std::int64_t matrix_bytes,
                  const Look& look) {
  while (begin < end) {
    const std::int64_t stop = std::min(end, (begin / matrix_bytes + 1) * matrix_bytes);
    look(begin, stop);
    begin = stop;
  }
}

/// Whether some code of these bytes is not +-0; `mask` leaves the sign bits out.
bool any_value(const std::byte* data, std::int64_t bytes, std::uint64_t mask) {
  constexpr std::int64_t kWord = 8;
  for (std::int64_t at = 0; at < bytes; at += kWord) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, static_cast<std::size_t>(std::min(kWord, bytes - at)));
    if ((word & mask) != 0) return true;
  }
  return false;
}

/// Blocks of codes, all of one matrix, that are all +-0. The first word settles nearly every block.
void find_zero_blocks(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                      Tally& tally) {
  const WeightView& v = scanned.weight->view;
  const bool fp4 = v.element == Element::kE2m1;
  const std::uint64_t mask = fp4 ? 0x7777777777777777U : 0x7F7F7F7F7F7F7F7FU;
  const std::int64_t row_bytes = code_row_bytes(v.element, v.k);
  const std::int64_t block_bytes = code_row_bytes(v.element, std::min(v.block_k, v.k));
  const std::int64_t group = begin / scanned.weight->group_code_bytes;
  const std::byte* matrix = scanned.tensor->view.data + group * scanned.weight->group_code_bytes;
  const std::int64_t last_row = end / row_bytes - group * v.n;
  std::vector<char> settled(static_cast<std::size_t>(v.scale_columns));
  for (std::int64_t row = begin / row_bytes - group * v.n; row < last_row;) {
    const std::int64_t grid_row = group * v.scale_rows + row / v.block_n;
    const std::int64_t stop = row + std::min(last_row - row, v.block_n);
    std::fill(settled.begin(), settled.end(), 0);
    std::int64_t open = v.scale_columns;
    for (; row < stop && open > 0; ++row) {
      const std::byte* codes = matrix + row * row_bytes;
      for (std::int64_t column = 0; column < v.scale_columns; ++column) {
        char& is_settled = settled[static_cast<std::size_t>(column)];
        const std::int64_t at = column * block_bytes;
        if (is_settled != 0 ||
            !any_value(codes + at, std::min(block_bytes, row_bytes - at), mask)) {
          continue;
        }
        is_settled = 1;
        --open;
      }
    }
    row = stop;
    for (std::int64_t column = 0; open > 0 && column < v.scale_columns; ++column) {
      if (settled[static_cast<std::size_t>(column)] != 0) continue;
      tally.add(grid_row * v.scale_columns + column, 0);
      --open;
    }
  }
}

}  // namespace

void Tally::add(const Tally& later) {
  for (std::int64_t i = 0; count + i < kPlaces && i < later.count; ++i) {
    first[static_cast<std::size_t>(count + i)] = later.first[static_cast<std::size_t>(i)];
  }
  count += later.count;
  infinite += later.infinite;
  negative += later.negative;
}

bool ScannedTensor::has_blocks() const noexcept {
  return role == Role::kCodes && weight->scales != nullptr;
}

bool ScannedTensor::has_scale_per_row() const noexcept {
  return role == Role::kScales && weight->view.block_n == 1 && weight->view.block_k == 32;
}

std::int64_t ScannedTensor::scale_size() const noexcept {
  return scale_bytes(weight->view.scale_type);
}

std::int64_t ScannedTensor::group_bytes() const noexcept {
  if (role == Role::kCodes) return weight->group_code_bytes;
  if (role == Role::kScales) return weight->group_scale_bytes;
  return static_cast<std::int64_t>(tensor->view.size_bytes);
}

std::int64_t ScannedTensor::unit_bytes() const noexcept {
  if (has_blocks()) {
    const WeightView& v = weight->view;
    return std::min(v.block_n, v.n) * code_row_bytes(v.element, v.k);
  }
  return has_scale_per_row() ? kScaleRows * weight->view.scale_stride * scale_size() : kStripBytes;
}

std::int64_t ScannedTensor::end_of_stretch(std::int64_t begin, std::int64_t bytes) const noexcept {
  const auto size = static_cast<std::int64_t>(tensor->view.size_bytes);
  const std::int64_t group = group_bytes();
  if (group <= bytes) return std::min(size, begin + bytes / group * group);
  const std::int64_t unit = unit_bytes();
  const std::int64_t step = unit * std::max<std::int64_t>(1, bytes / unit);
  return std::min(begin + step, (begin / group + 1) * group);
}

std::vector<ScannedTensor> scanned_tensors(const Checkpoint& checkpoint, const WeightMap& map) {
  std::map<const Tensor*, ScannedTensor> known;
  for (const MappedWeight& weight : map.weights()) {
    known[weight.codes] = {weight.codes, Role::kCodes, &weight};
    if (weight.scales != nullptr) {
      known[weight.scales] = {weight.scales, Role::kScales, &weight};
    }
    if (weight.tensor_scale != nullptr) {
      known[weight.tensor_scale] = {weight.tensor_scale, Role::kTensorScale, &weight};
    }
  }
  std::vector<ScannedTensor> out;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const auto place = known.find(&tensor);
    out.push_back(place != known.end() ? place->second : ScannedTensor{.tensor = &tensor});
  }
  return out;
}

void scan_elements(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                   Tallies& tallies) {
  if (scanned.role == Role::kScales || scanned.role == Role::kTensorScale) {
    find_bad_scales(scanned, begin, end, tallies);
  } else {
    find_not_finite(scanned.tensor->view, begin, end, tallies);
  }
}

void scan_blocks(const ScannedTensor& scanned, std::int64_t begin, std::int64_t end,
                 Tallies& tallies) {
  if (scanned.has_blocks()) {
    for_matrices(begin, end, scanned.weight->group_code_bytes, [&](auto first, auto last) {
      find_zero_blocks(scanned, first, last, of(tallies, FindingKind::kZeroBlock));
    });
  }
  if (scanned.has_scale_per_row()) {
    for_matrices(begin, end, scanned.weight->group_scale_bytes, [&](auto first, auto last) {
      find_differing_rows(scanned, first, last, of(tallies, FindingKind::kScalesDiffer));
    });
  }
}

}  // namespace deepinfer::models
