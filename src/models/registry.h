// The model families. To add one: a file with its opener, and one row in registry.cc.
#pragma once

#include <memory>
#include <string_view>

#include "deepinfer/model.h"
#include "models/config.h"

namespace deepinfer::models {

struct Family {
  std::string_view model_type;  // as in config.json
  std::unique_ptr<Model> (*open)(const std::filesystem::path& folder, const Config& config,
                                 const ModelOptions& options);
};

std::unique_ptr<Model> open_llama(const std::filesystem::path& folder, const Config& config,
                                  const ModelOptions& options);

}  // namespace deepinfer::models
