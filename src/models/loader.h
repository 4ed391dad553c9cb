// Finds the tensors of a model by name and checks their types and shapes against its configuration.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/weight.h"
#include "deepinfer/weight_map.h"

namespace deepinfer::models {

class Loader {
 public:
  /// Pairs codes with scales; throws Error(kBadInput) when any tensor of the checkpoint does not
  /// fit, used or not: what was meant to be a weight must not be left out silently.
  explicit Loader(const Checkpoint& checkpoint);

  bool has_linear(const std::string& module) const { return map_.find(module) != nullptr; }

  /// The weight of a module, [n, k] in any format. Its codes stay in the mapped file.
  Weight linear(const std::string& module, std::int64_t n, std::int64_t k) const;

  /// A bf16 vector, copied: it is small and may lie at an odd address.
  std::vector<std::uint16_t> bf16_vector(const std::string& name, std::int64_t size) const;

  /// A bf16 matrix [n, k] in the mapped file, at any address.
  const std::byte* bf16_matrix(const std::string& name, std::int64_t n, std::int64_t k) const;

  /// Throws Error(kBadInput) when the checkpoint holds tensors that the model did not ask for: a
  /// configuration with too few layers would run and say nonsense. `ignored`: names that may be
  /// left.
  void refuse_unused(const std::vector<std::string>& ignored) const;

 private:
  const Tensor& bf16_tensor(const std::string& name, const std::vector<std::int64_t>& shape) const;

  const Checkpoint& checkpoint_;
  WeightMap map_;
  mutable std::set<std::string_view> used_;  // names of tensors
};

}  // namespace deepinfer::models
