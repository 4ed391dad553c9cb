// Options that all commands share which run a model.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "deepinfer/model.h"
#include "deepinfer/text.h"

namespace deepinfer::cli {

/// --threads of every command that computes.
void add_threads_option(CLI::App& sub, int& threads);

struct ModelOptions {
  std::string path;
  std::string activations = "fp8";
  int threads = 0;

  /// Adds PATH, --activations and --threads.
  void add_to(CLI::App& sub);

  Context context() const { return Context({.num_threads = threads, .isa = {}}); }
  std::unique_ptr<Model> open_model() const;
  Tokenizer open_tokenizer() const;
};

}  // namespace deepinfer::cli
