// prepare_model(): every fp8 and fp4 weight of a list or a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "deepinfer/error.h"
#include "deepinfer/prepared_weight.h"
#include "deepinfer/weight_map.h"

namespace deepinfer {
namespace {

/// Prepares each item with `make`; what that refuses is noted after `refused`.
template <class Items, class Make>
PreparedModel prepare_all(const Context& context, const Items& items, Make make,
                          std::vector<RefusedWeight> refused = {}) {
  PreparedModel model;
  if (!context.gemm_enabled()) return model;
  model.refused = std::move(refused);
  for (const auto& item : items) {
    try {
      model.weights.push_back({item.name, make(item)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      model.refused.push_back({item.name, error.what()});
    }
  }
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  std::sort(model.weights.begin(), model.weights.end(), by_name);
  std::sort(model.refused.begin(), model.refused.end(), by_name);
  return model;
}

PreparedWeight prepare_mapped(const MappedWeight& weight) {
  if (!weight.cannot_run.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("weight '{}': {}", weight.name, weight.cannot_run));
  }
  if (!weight.stacked) return PreparedWeight::single(Weight::prepare(weight.view, weight.name));
  std::vector<Weight> groups;
  for (std::int64_t i = 0; i < weight.groups; ++i) {
    groups.push_back(Weight::prepare(group_view(weight, i), weight.name));
  }
  return PreparedWeight::stack(std::move(groups));
}

}  // namespace

PreparedModel prepare_model(const Context& context, const std::vector<NamedPackedWeight>& weights) {
  return prepare_all(context, weights, [](const NamedPackedWeight& weight) {
    return PreparedWeight::prepare(weight.view, weight.name);
  });
}

PreparedModel prepare_model(const Context& context, const WeightMap& map) {
  std::vector<MappedWeight> coded;
  for (const MappedWeight& weight : map.weights()) {
    if (weight.view.element != Element::kBf16) coded.push_back(weight);
  }
  std::vector<RefusedWeight> unpaired;  // codes and scales that did not find together
  for (const MapProblem& problem : map.problems()) {
    unpaired.push_back({problem.tensor, problem.reason});
  }
  return prepare_all(context, coded, prepare_mapped, std::move(unpaired));
}

}  // namespace deepinfer
