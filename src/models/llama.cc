// The Llama family: the dense decoder of decoder.h as it is.
//
// bf16 roundings are where transformers' LlamaForCausalLM has them when it runs in bf16: after
// every linear layer, norm, product and sum; softmax and sums are f32. Logits stay f32.
#include "models/decoder.h"
#include "models/registry.h"

namespace deepinfer::models {

std::unique_ptr<Model> open_llama(const std::filesystem::path& folder, const Config& config,
                                  const ModelOptions& options) {
  return open_decoder(folder, config, read_decoder(config), options);
}

}  // namespace deepinfer::models
