// README's example as a program of its own: consumer FILE WEIGHT prints y for x = ones. Every part
// of the library that needs another one (tokenizer, chat templates) is linked as well.
#include <cstdio>
#include <vector>

#include "deepinfer/checkpoint.h"
#include "deepinfer/error.h"
#include "deepinfer/linear.h"
#include "deepinfer/text.h"
#include "deepinfer/weight_map.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  deepinfer::Context context;
  deepinfer::Checkpoint checkpoint = deepinfer::Checkpoint::open(argv[1]);
  deepinfer::WeightMap map = deepinfer::WeightMap::build(checkpoint);
  const auto& mapped = map.at(argv[2]);
  deepinfer::Weight w = deepinfer::Weight::prepare(mapped.view, mapped.name);
  const std::vector<float> x(static_cast<std::size_t>(w.k()), 1.0F);
  std::vector<float> y(static_cast<std::size_t>(w.n()));
  deepinfer::linear(context, {x.data(), deepinfer::FloatType::kF32, 1, w.k()}, w,
                    {y.data(), deepinfer::FloatType::kF32, 1, w.n()});
  for (const float value : y) std::printf("%g\n", static_cast<double>(value));
  try {  // an exception keeps its type on the way out of a shared library
    deepinfer::Tokenizer::from_file("/nowhere/tokenizer.json");
  } catch (const deepinfer::Error& error) {
    return error.code() == deepinfer::ErrorCode::kBadInput ? 0 : 1;
  }
  return 1;
}
