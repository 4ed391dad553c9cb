#include "models/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "deepinfer/error.h"

namespace deepinfer::models {

Loader::Loader(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), map_(WeightMap::build(checkpoint)) {
  if (map_.problems().empty()) return;
  const MapProblem& first = map_.problems().front();
  const std::size_t more = map_.problems().size() - 1;
  throw Error(ErrorCode::kBadInput,
              fmt::format("{}: tensor '{}': {}{}", checkpoint.directory().string(), first.tensor,
                          first.reason, more > 0 ? fmt::format(" (and {} more)", more) : ""));
}

Weight Loader::linear(const std::string& module, std::int64_t n, std::int64_t k) const {
  const MappedWeight& w = map_.at(module);
  if (!w.cannot_run.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: weight '{}' cannot run yet: {}",
                                                     w.codes->file.string(), module, w.cannot_run));
  }
  if (w.stacked) {
    throw Error(
        ErrorCode::kBadInput,
        fmt::format("{}: tensor '{}': expected a matrix, found a stack, {}", w.codes->file.string(),
                    w.codes->name, shape_string(w.codes->view.shape)));
  }
  if (w.view.n != n || w.view.k != k) {
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: tensor '{}': expected [{}, {}] by config.json, found [{}, {}]",
                            w.codes->file.string(), w.codes->name, n, k, w.view.n, w.view.k));
  }
  used_.insert(w.codes->name);
  if (w.scales != nullptr) used_.insert(w.scales->name);
  try {
    return Weight::prepare(w.view, module);
  } catch (const Error& error) {  // what a caller may not pass is bad input when a file says it
    throw Error(ErrorCode::kBadInput, fmt::format("{}: {}", w.codes->file.string(), error.what()));
  }
}

std::vector<std::uint16_t> Loader::bf16_vector(const std::string& name, std::int64_t size) const {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(size));
  std::memcpy(out.data(), bf16_tensor(name, {size}).view.data, out.size() * sizeof(out[0]));
  return out;
}

const std::byte* Loader::bf16_matrix(const std::string& name, std::int64_t n,
                                     std::int64_t k) const {
  return bf16_tensor(name, {n, k}).view.data;
}

const Tensor& Loader::bf16_tensor(const std::string& name,
                                  const std::vector<std::int64_t>& shape) const {
  const Tensor& t = checkpoint_.at(name);
  if (t.view.dtype != DType::kBf16 || t.view.shape != shape) {
    throw Error(
        ErrorCode::kBadInput,
        fmt::format("{}: tensor '{}': expected BF16 {}, found {} {}", t.file.string(), name,
                    shape_string(shape), dtype_name(t.view.dtype), shape_string(t.view.shape)));
  }
  used_.insert(t.name);
  return t;
}

void Loader::refuse_unused(const std::vector<std::string>& ignored) const {
  for (const Tensor& t : checkpoint_.tensors()) {
    if (used_.contains(t.name) || std::count(ignored.begin(), ignored.end(), t.name) > 0) continue;
    if (t.name.ends_with(".rotary_emb.inv_freq")) continue;  // a constant of old checkpoints
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: tensor '{}' is not part of the model that config.json describes",
                            t.file.string(), t.name));
  }
}

}  // namespace deepinfer::models
