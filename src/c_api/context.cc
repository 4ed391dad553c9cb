// Contexts for C: options read field by field, the caller's threads behind an Executor.
#include <string>

#include "c_api/boundary.h"
#include "c_api/handles.h"
#include "c_api/structs.h"

namespace deepinfer::c_api {
namespace {

std::optional<bool> switch_of(const Refuse& refuse, const char* name, std::int32_t value) {
  if (value < -1 || value > 1) {
    refuse(name, "is " + std::to_string(value) + ", expected -1, 0 or 1");
  }
  if (value == -1) return std::nullopt;
  return value == 1;
}

std::optional<Isa> isa_of(const Refuse& refuse, const char* name) {
  if (name == nullptr) return std::nullopt;
  const std::optional<Isa> isa = isa_from_name(name);
  if (!isa) {
    std::string known;
    for (const IsaInfo& info : system_info().isas) {
      known += (known.empty() ? "" : ", ") + std::string(info.name);
    }
    refuse("isa", "is '" + std::string(name) + "', expected one of " + known);
  }
  return isa;
}

deepinfer_context* create(const deepinfer_context_options* in) {
  const Refuse refuse("context_create");
  const deepinfer_context_options defaults = DEEPINFER_CONTEXT_OPTIONS_INIT;
  const auto read = read_struct(refuse, "options", in != nullptr ? in : &defaults, defaults);
  ContextOptions options;
  options.num_threads = read.num_threads;
  options.isa = isa_of(refuse, read.isa);
  options.gemm = switch_of(refuse, "gemm", read.gemm);
  options.split2 = switch_of(refuse, "split2", read.split2);
  if (read.executor == nullptr) return make_handle<deepinfer_context>(options, nullptr);
  const auto executor = read_struct(refuse, "executor", read.executor, deepinfer_executor{});
  if (executor.num_threads == nullptr) refuse("executor's num_threads", "is null");
  if (executor.parallel == nullptr) refuse("executor's parallel", "is null");
  return make_handle<deepinfer_context>(options, &executor);
}

}  // namespace
}  // namespace deepinfer::c_api

using namespace deepinfer;
using c_api::guarded;
using c_api::Refuse;

deepinfer_status deepinfer_context_create(const deepinfer_context_options* options,
                                          deepinfer_context** out) noexcept {
  return guarded([&] {
    deepinfer_context*& handle = Refuse("context_create").non_null("out", out);
    handle = c_api::create(options);
  });
}

void deepinfer_context_destroy(deepinfer_context* context) noexcept { delete context; }

deepinfer_status deepinfer_context_num_threads(const deepinfer_context* context,
                                               int32_t* out) noexcept {
  return guarded([&] {
    const Refuse refuse("context_num_threads");
    const Context& ours = c_api::context_of(refuse, context);
    refuse.non_null("out", out) = ours.num_threads();
  });
}

deepinfer_status deepinfer_context_isa(const deepinfer_context* context,
                                       const char** out) noexcept {
  return guarded([&] {
    const Refuse refuse("context_isa");
    const Context& ours = c_api::context_of(refuse, context);
    refuse.non_null("out", out) = isa_name(ours.isa()).data();  // a literal
  });
}
