// Tensors of the caller -> the views of the C++ functions. What those functions do not see, type,
// rank and inner strides, is checked here; shapes are theirs to check.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "c_api/refuse.h"
#include "deepinfer/blockquant.h"
#include "deepinfer/deepinfer.h"
#include "deepinfer/linear.h"
#include "deepinfer/prepared_weight.h"
#include "deepinfer/quantized.h"

namespace deepinfer::c_api {

/// A tensor with every stride written out; those of dimensions of at most one element are dense.
struct Strided {
  void* data = nullptr;
  deepinfer_dtype dtype = 0;
  int rank = 0;
  std::array<std::int64_t, 4> shape = {};
  std::array<std::int64_t, 4> stride = {};

  std::int64_t elements() const noexcept;  ///< their number
};

enum class Inner : std::uint8_t { kUnit, kStrided };

class Tensors {
 public:
  explicit Tensors(const Refuse& refuse) : refuse_(refuse) {}

  /// One of these types, rank in [min_rank, max_rank].
  Strided tensor(const char* name, const deepinfer_tensor* in,
                 std::initializer_list<deepinfer_dtype> dtypes, int min_rank, int max_rank,
                 Inner inner = Inner::kUnit) const;
  Strided dense(const char* name, const deepinfer_tensor* in,
                std::initializer_list<deepinfer_dtype> dtypes, int min_rank, int max_rank) const;

  MatrixView matrix(const char* name, const deepinfer_tensor* in,
                    std::initializer_list<deepinfer_dtype> dtypes = {DEEPINFER_BF16,
                                                                     DEEPINFER_F32}) const;
  MutableMatrixView output(const char* name, const deepinfer_tensor* in) const;
  QuantizedView quantized(const deepinfer_tensor* a, const deepinfer_tensor* sfa,
                          std::int64_t block_k) const;
  blockquant::ByteMatrix bytes(const char* name, const deepinfer_tensor* in,
                               std::initializer_list<deepinfer_dtype> dtypes) const;
  const std::int32_t* flag(const deepinfer_tensor* in) const;

  /// Rows of packed scales [rows, columns] or [e, rows, columns].
  static PackedScales packed_scales(const Strided& scales);
  /// Codes and packed scales of a weight, whose ranks and groups may disagree: `*agree` then is
  /// false.
  PackedWeightView packed(const deepinfer_tensor* codes, const deepinfer_tensor* scales,
                          bool* agree) const;
  /// The same, where they must agree.
  PackedWeightView packed(const deepinfer_tensor* codes, const deepinfer_tensor* scales) const;

 private:
  const Refuse& refuse_;
};

}  // namespace deepinfer::c_api
