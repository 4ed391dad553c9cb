// What the handles are.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "c_api/refuse.h"
#include "deepinfer/checkpoint.h"
#include "deepinfer/deepinfer.h"
#include "deepinfer/prepared_weight.h"
#include "deepinfer/runtime.h"
#include "deepinfer/weight_map.h"

namespace deepinfer::c_api {

/// The caller's threads.
class CallerThreads final : public Executor {
 public:
  /// Asks for the number once: whatever the caller's function throws is caught here.
  explicit CallerThreads(const deepinfer_executor& executor)
      : executor_(executor), num_threads_(executor.num_threads(executor.user)) {}

  int num_threads() const noexcept override { return num_threads_; }

  void parallel(void (*run)(void* task, int i), void* task) override {
    executor_.parallel(executor_.user, run, task);
  }

 private:
  deepinfer_executor executor_;
  int num_threads_;
};

}  // namespace deepinfer::c_api

struct deepinfer_context {
  deepinfer_context(const deepinfer::ContextOptions& options, const deepinfer_executor* executor)
      : context(with_threads(options, executor)) {}

  std::optional<deepinfer::c_api::CallerThreads> threads;
  deepinfer::Context context;

 private:
  deepinfer::ContextOptions with_threads(deepinfer::ContextOptions options,
                                         const deepinfer_executor* executor) {
    if (executor != nullptr) options.executor = &threads.emplace(*executor);
    return options;
  }
};

struct deepinfer_checkpoint {
  deepinfer_checkpoint(deepinfer::Checkpoint opened, deepinfer::WeightMap paired)
      : checkpoint(std::move(opened)), map(std::move(paired)) {}

  deepinfer::Checkpoint checkpoint;
  deepinfer::WeightMap map;  // points into the checkpoint's state, which stays where it is
};

struct deepinfer_model {
  explicit deepinfer_model(deepinfer::PreparedModel prepared) : model(std::move(prepared)) {}

  deepinfer::PreparedModel model;
};

namespace deepinfer::c_api {

/// Memory that the caller gives back through a function of its own.
template <class Handle, class... Arguments>
Handle* make_handle(Arguments&&... arguments) {
  return std::make_unique<Handle>(std::forward<Arguments>(arguments)...).release();
}

// A deepinfer_weight is a PreparedWeight under another name, so that those of a model need no
// handles of their own.
inline const PreparedWeight* unwrap(const deepinfer_weight* weight) noexcept {
  return reinterpret_cast<const PreparedWeight*>(weight);
}
inline deepinfer_weight* wrap(PreparedWeight* weight) noexcept {
  return reinterpret_cast<deepinfer_weight*>(weight);
}
inline const deepinfer_weight* wrap(const PreparedWeight* weight) noexcept {
  return reinterpret_cast<const deepinfer_weight*>(weight);
}

inline const Context& context_of(const Refuse& refuse, const deepinfer_context* context) {
  return refuse.non_null("context", context).context;
}
inline const PreparedWeight& weight_of(const Refuse& refuse, const char* name,
                                       const deepinfer_weight* weight) {
  return *unwrap(&refuse.non_null(name, weight));
}

/// The group of a stacked weight.
inline std::optional<std::int64_t> group_of(std::int64_t group) {
  if (group == DEEPINFER_NO_GROUP) return std::nullopt;
  return group;
}

}  // namespace deepinfer::c_api
