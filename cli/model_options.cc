#include "model_options.h"

namespace deepinfer::cli {

void add_threads_option(CLI::App& sub, int& threads) {
  sub.add_option("--threads", threads, "Threads; 0: DEEPINFER_THREADS, else this process's CPUs")
      ->check(CLI::Range(0, 1024));
}

void ModelOptions::add_to(CLI::App& sub) {
  sub.add_option("PATH", path, "Model folder: config.json, tokenizer.json, safetensors")
      ->required();
  sub.add_option("--activations", activations,
                 "fp8: quantize x in 1x32 blocks in front of fp8 and fp4 weights; bf16: leave it")
      ->check(CLI::IsMember({"fp8", "bf16"}))
      ->capture_default_str();
  add_threads_option(sub, threads);
}

std::unique_ptr<Model> ModelOptions::open_model() const {
  return Model::open(path, {.activations = activations == "bf16" ? Activations::kAsIs
                                                                 : Activations::kQuantize224});
}

Tokenizer ModelOptions::open_tokenizer() const {
  return Tokenizer::from_file(std::filesystem::path(path) / "tokenizer.json");
}

}  // namespace deepinfer::cli
