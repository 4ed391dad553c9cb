#include "models/registry.h"

#include "deepinfer/error.h"
#include "runtime/fp_state.h"

namespace deepinfer {
namespace {

constexpr models::Family kFamilies[] = {
    {"llama", models::open_llama},
    {"qwen3", models::open_qwen3},
};

}  // namespace

std::vector<std::string_view> Model::families() {
  std::vector<std::string_view> names;
  for (const models::Family& family : kFamilies) names.push_back(family.model_type);
  return names;
}

namespace {

std::unique_ptr<Model> open_known(const std::filesystem::path& folder,
                                  const ModelOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    throw Error(ErrorCode::kBadInput, folder.string() + ": no such folder");
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(ErrorCode::kBadInput,
                folder.string() + ": is not a folder with config.json and safetensors files");
  }
  const models::Config config = models::Config::from_file(folder / "config.json");
  const std::string type = config.text("model_type");
  std::string known;
  for (const models::Family& family : kFamilies) {
    if (family.model_type == type) return family.open(folder, config, options);
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  config.unsupported("model_type", "not a family this version runs (known: " + known + ")");
}

}  // namespace

std::unique_ptr<Model> Model::open(const std::filesystem::path& folder,
                                   const ModelOptions& options) {
  std::unique_ptr<Model> model;
  in_ieee_state(
      [&] { model = open_known(folder, options); });  // frequencies, numbers of the config
  return model;
}

}  // namespace deepinfer
