// How producers write quantized weights into checkpoints: one row per way, as data. A new family is
// a new row, or a longer list of names in a row.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "deepinfer/format.h"
#include "deepinfer/tensor.h"

namespace deepinfer::models {

/// `quant_method` of config.json.
enum class Method : std::uint8_t {
  kNone,  ///< config.json says nothing about quantization
  kFp8,
  kMxfp4,
  kCompressedTensors,
  kModelOpt,
  kQuark,
};

/// How scales lie over a weight [n, k].
enum class Grid : std::uint8_t {
  kBlock,    ///< in blocks whose sides config.json names
  kRow32,    ///< 1 x 32
  kRow16,    ///< 1 x 16
  kChannel,  ///< one per row, [n, 1]
  kTensor,   ///< one for all, [1] or []
};

/// How codes lie in their tensor. One axis more in front makes it a stack of such weights.
enum class CodeShape : std::uint8_t {
  kElements,  ///< [n, k]
  kPairs,     ///< [n, k / 2] bytes of two codes; with data type F4 [n, k]
  kBlocks,    ///< [n, k / 32, 16] bytes of two codes
};

/// A set of the values of a small enumeration.
template <class Enumeration>
class Set {
 public:
  constexpr Set() = default;
  constexpr Set(std::initializer_list<Enumeration> members) {
    for (Enumeration member : members) bits_ |= bit(member);
  }
  constexpr bool has(Enumeration member) const { return (bits_ & bit(member)) != 0; }

 private:
  static constexpr std::uint32_t bit(Enumeration member) {
    return std::uint32_t{1} << static_cast<unsigned>(member);
  }
  std::uint32_t bits_ = 0;
};

/// What config.json must say, and in which modules.
struct When {
  Method method;
  std::string_view words;           ///< the same for messages
  std::string_view name_part = {};  ///< the module's name has this in it
};

struct Codes {
  std::string_view suffix;  ///< follows the module's name
  Set<DType> dtypes;
  CodeShape shape;
};

struct Scales {
  std::array<std::string_view, 3> suffixes;  ///< the weight has exactly one of these
  Set<DType> dtypes;
  std::string_view tensor_suffix = {};  ///< a second scale, F32, one for the whole weight
  bool tensor_divides = false;          ///< values are divided by the second scale
};

/// One way to write a weight.
struct Layout {
  std::string_view producers;
  When when;
  Element element;
  Grid grid;
  Codes codes;
  Scales scales;
  std::string_view alternating = {};  ///< modules that end so alternate gate and up rows
  std::string_view cannot_run = {};   ///< why there is no kernel for it
};

std::span<const Layout> layouts() noexcept;

}  // namespace deepinfer::models
