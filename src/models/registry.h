// The model families. To add one: a file with its opener, its line here, its row in registry.cc.
#pragma once

#include <memory>
#include <string_view>

#include "deepinfer/model.h"
#include "models/config.h"

namespace deepinfer::models {

/// Reads `config` and opens the checkpoint of `folder`; throws as Model::open() does.
using OpenFamily = std::unique_ptr<Model>(const std::filesystem::path& folder, const Config& config,
                                          const ModelOptions& options);

struct Family {
  std::string_view model_type;  // as in config.json
  OpenFamily* open;
};

OpenFamily open_llama;
OpenFamily open_qwen3;

}  // namespace deepinfer::models
