// What `deepinfer inspect` finds in a checkpoint, before it is printed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "deepinfer/scan.h"
#include "deepinfer/weight_map.h"

namespace deepinfer::cli {

struct Count {
  std::int64_t number = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> scales;  // data types of the scales of a format

  void add(std::uint64_t more) {
    ++number;
    bytes += more;
  }
};

/// Weights that differ only in the numbers in their names: "model.layers.*.mlp.experts.*.up_proj".
struct Kind {
  std::string pattern;
  std::string format;
  std::string scales;  // data type; empty without
  std::string producer;
  std::string block;  // "128 x 128", "row", "all"; empty without scales
  std::string cannot_run;
  std::set<std::vector<std::int64_t>> shapes;  // [groups, n, k]
  std::int64_t number = 0;
  std::uint64_t bytes = 0;  // codes and scales
  ScanCounts counts;        // zero without a scan
};

/// A layer by its number in names; -1: tensors outside of layers.
struct Layer {
  std::map<std::string, Count> formats;
  std::int64_t problems = 0;
  std::set<std::string> cannot_run;  // reasons
};

struct Inspection {
  std::string model_type;
  std::int64_t num_layers = 0;  // that config.json promises
  std::vector<Kind> kinds;      // most bytes first
  std::map<std::int64_t, Layer> layers;
  std::map<std::string, Count> formats;
  std::map<std::string, Count> dtypes;
  std::map<const Tensor*, std::string> format_of;  // of codes and scales; others are plain
  std::vector<std::vector<std::string>> ties;      // names of tensors that are one and the same
  std::map<std::string, std::set<std::int64_t>> cannot_run;  // reason -> layers
  std::vector<MapProblem> problems;
  std::optional<Scan> scan;
  ScanCounts total;
};

/// The number after "layers." or "block." in a tensor's name, or -1.
std::int64_t layer_of(const std::string& name);

/// A name with "*" for its numbers.
std::string pattern_of(const std::string& name);

/// `scan`: counts of every tensor, if they were made.
Inspection inspect(const Checkpoint& checkpoint, const WeightMap& map, std::optional<Scan> scan);

}  // namespace deepinfer::cli
