// Models for C: the weights of a checkpoint or a list, by index and by name.
#include <algorithm>
#include <vector>

#include "c_api/boundary.h"
#include "c_api/handles.h"
#include "c_api/tensors.h"

namespace deepinfer::c_api {
namespace {

/// A list of `count` weights as the caller has it.
struct List {
  const char* const* names;
  const deepinfer_tensor* const* codes;
  const deepinfer_tensor* const* scales;
  std::int64_t count;
};

/// What the types or shapes of its tensors already say is noted as a refusal.
PreparedModel prepare(const Refuse& refuse, const Context& context, const List& list) {
  std::vector<NamedPackedWeight> weights;
  std::vector<RefusedWeight> refused;
  for (std::int64_t i = 0; i < list.count; ++i) {
    const std::string at = "names[" + std::to_string(i) + "]";
    const char* name = &refuse.non_null(at.c_str(), list.names[i]);
    try {
      weights.push_back({name, Tensors(refuse).packed(list.codes[i], list.scales[i])});
    } catch (const Error& error) {
      refused.push_back({name, error.what()});
    }
  }
  PreparedModel model = prepare_model(context, weights);
  if (context.gemm_enabled()) {
    model.refused.insert(model.refused.end(), refused.begin(), refused.end());
    std::sort(model.refused.begin(), model.refused.end(),
              [](const RefusedWeight& a, const RefusedWeight& b) { return a.name < b.name; });
  }
  return model;
}

/// Item number `index`.
template <class Item>
const Item& item(const Refuse& refuse, const std::vector<Item>& items, std::int64_t index) {
  if (index < 0 || static_cast<std::size_t>(index) >= items.size()) {
    refuse("index", "is " + std::to_string(index) + ", there are " + std::to_string(items.size()));
  }
  return items[static_cast<std::size_t>(index)];
}

}  // namespace
}  // namespace deepinfer::c_api

using namespace deepinfer;
using c_api::guarded;
using c_api::Refuse;

deepinfer_status deepinfer_checkpoint_open(const char* path, deepinfer_checkpoint** out) noexcept {
  return guarded([&] {
    const Refuse refuse("checkpoint_open");
    deepinfer_checkpoint*& handle = refuse.non_null("out", out);
    Checkpoint checkpoint = Checkpoint::open(&refuse.non_null("path", path));
    WeightMap map = WeightMap::build(checkpoint);
    handle = c_api::make_handle<deepinfer_checkpoint>(std::move(checkpoint), std::move(map));
  });
}

void deepinfer_checkpoint_close(deepinfer_checkpoint* checkpoint) noexcept { delete checkpoint; }

deepinfer_status deepinfer_prepare_checkpoint(const deepinfer_context* context,
                                              const deepinfer_checkpoint* checkpoint,
                                              deepinfer_model** out) noexcept {
  return guarded([&] {
    const Refuse refuse("prepare_checkpoint");
    const Context& ours = c_api::context_of(refuse, context);
    const WeightMap& map = refuse.non_null("checkpoint", checkpoint).map;
    deepinfer_model*& handle = refuse.non_null("out", out);
    handle = c_api::make_handle<deepinfer_model>(prepare_model(ours, map));
  });
}

deepinfer_status deepinfer_prepare_model(const deepinfer_context* context, const char* const* names,
                                         const deepinfer_tensor* const* codes,
                                         const deepinfer_tensor* const* scales, int64_t count,
                                         deepinfer_model** out) noexcept {
  return guarded([&] {
    const Refuse refuse("prepare_model");
    const Context& ours = c_api::context_of(refuse, context);
    deepinfer_model*& handle = refuse.non_null("out", out);
    if (count < 0) refuse("count", "is " + std::to_string(count));
    if (count > 0) {
      refuse.non_null("names", names);
      refuse.non_null("codes", codes);
      refuse.non_null("scales", scales);
    }
    handle = c_api::make_handle<deepinfer_model>(
        c_api::prepare(refuse, ours, {names, codes, scales, count}));
  });
}

void deepinfer_model_destroy(deepinfer_model* model) noexcept { delete model; }

deepinfer_status deepinfer_model_count(const deepinfer_model* model, int64_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("model_count");
    const PreparedModel& ours = refuse.non_null("model", model).model;
    refuse.non_null("out", out) = ours.count();
  });
}

deepinfer_status deepinfer_model_num_refused(const deepinfer_model* model, int64_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("model_num_refused");
    const PreparedModel& ours = refuse.non_null("model", model).model;
    refuse.non_null("out", out) = static_cast<int64_t>(ours.refused.size());
  });
}

deepinfer_status deepinfer_model_weight(const deepinfer_model* model, int64_t index,
                                        const char** name,
                                        const deepinfer_weight** weight) noexcept {
  return guarded([&] {
    const Refuse refuse("model_weight");
    const auto& found = c_api::item(refuse, refuse.non_null("model", model).model.weights, index);
    const char*& to_name = refuse.non_null("name", name);
    refuse.non_null("weight", weight) = c_api::wrap(&found.weight);
    to_name = found.name.c_str();
  });
}

deepinfer_status deepinfer_model_refusal(const deepinfer_model* model, int64_t index,
                                         const char** name, const char** reason) noexcept {
  return guarded([&] {
    const Refuse refuse("model_refusal");
    const auto& found = c_api::item(refuse, refuse.non_null("model", model).model.refused, index);
    const char*& to_name = refuse.non_null("name", name);
    refuse.non_null("reason", reason) = found.reason.c_str();
    to_name = found.name.c_str();
  });
}

deepinfer_status deepinfer_model_find(const deepinfer_model* model, const char* name,
                                      const deepinfer_weight** out) noexcept {
  return guarded([&] {
    const Refuse refuse("model_find");
    const PreparedModel& ours = refuse.non_null("model", model).model;
    const char* wanted = &refuse.non_null("name", name);
    refuse.non_null("out", out) = c_api::wrap(ours.find(wanted));
  });
}
