// Opening a checkpoint: which files belong to it, and whether they agree with each other.
#include "deepinfer/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/mapped_file.h"
#include "checkpoint/message.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "deepinfer/error.h"

namespace deepinfer {

namespace fs = std::filesystem;
using checkpoint::count_label;
using checkpoint::MappedFile;
using checkpoint::path_label;
using checkpoint::tensor_label;
using checkpoint::WeightMap;

struct Checkpoint::State {
  std::vector<MappedFile> mappings;
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;
  fs::path directory;
  std::vector<fs::path> files;
  std::uint64_t file_bytes = 0;

  /// Maps and checks one file; returns its tensors, which are the last ones of `tensors`.
  std::span<const Tensor> add_file(const fs::path& path);
  std::span<const Tensor> add_bytes(std::span<const std::byte> bytes, const fs::path& path);

  void open_file(const fs::path& path);
  void open_index(const fs::path& path);
  void open_folder(const fs::path& path);

  /// Sorts the tensors by name and refuses a name that two files hold.
  void sort_tensors();
};

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

[[noreturn]] void refuse(const fs::path& path, const std::string& fault) {
  throw Error(ErrorCode::kBadInput, path_label(path) + ": " + fault);
}

/// "model.safetensors" has the folder "", which is "." to the system.
fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

/// What people put in the place of a safetensors file, by its first bytes.
struct Stranger {
  std::string_view magic;
  std::string_view words;
};
constexpr Stranger kStrangers[] = {
    {"GGUF",
     "a GGUF file, which holds other formats in another order: a safetensors checkpoint of the "
     "same "
     "model is needed"},
    {"version https://git-lfs",
     "a Git LFS pointer, not the file itself: run \"git lfs pull\", or download the file again"},
    {"PK\x03\x04", "a zip archive (PyTorch?), expected a safetensors file"},
    {"<!DOCTYPE", "a web page, expected a safetensors file: was the download refused?"},
    {"<html", "a web page, expected a safetensors file: was the download refused?"},
};

void refuse_strangers(const fs::path& path, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Stranger& stranger : kStrangers) {
    if (text.starts_with(stranger.magic)) refuse(path, std::string(stranger.words));
  }
}

/// Finds missing files of an interrupted download before anything is mapped.
void check_shards_exist(const std::set<std::string_view>& shards, const fs::path& index) {
  const fs::path folder = folder_of(index);
  std::size_t num_missing = 0;
  fs::path first;
  for (const std::string_view shard : shards) {
    std::error_code ignored;  // other faults are reported by the mapping, with their reason
    if (fs::status(folder / shard, ignored).type() != fs::file_type::not_found) continue;
    if (num_missing == 0) first = folder / shard;
    ++num_missing;
  }
  if (num_missing == 0) return;
  refuse(first, "missing, but " + path_label(index.filename()) + " lists it (" +
                    std::to_string(num_missing) + " of " + count_label(shards.size(), "file") +
                    " missing: incomplete download?)");
}

/// The index and the shard must say the same about every tensor of the shard.
void check_shard_against_index(std::span<const Tensor> tensors, const WeightMap& map) {
  for (const Tensor& tensor : tensors) {
    const auto place = map.find(tensor.name);
    if (place == map.end()) {
      refuse(tensor.file, tensor_label(tensor.name) + ": not in the index");
    }
    if (place->second != tensor.file.filename().native()) {
      refuse(tensor.file, tensor_label(tensor.name) + ": the index maps it to " +
                              checkpoint::printable(place->second) + ", found here");
    }
  }
}

/// The files of a folder with this extension, sorted by name. Folders with such a name are not
/// shards; a link that leads nowhere is one that is missing, and is left in for the mapping to
/// refuse.
std::vector<fs::path> files_with(const fs::path& folder, const char* extension) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (entries->path().extension() != extension) continue;
    std::error_code ignored;
    if (entries->is_directory(ignored)) continue;
    files.push_back(entries->path());
  }
  if (error) refuse(folder, "cannot be listed: " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

bool by_name(const Tensor& a, const Tensor& b) { return a.name < b.name; }

}  // namespace

std::span<const Tensor> Checkpoint::State::add_file(const fs::path& path) {
  mappings.push_back(MappedFile::open(path));
  refuse_strangers(path, mappings.back().bytes());
  return add_bytes(mappings.back().bytes(), path);
}

std::span<const Tensor> Checkpoint::State::add_bytes(std::span<const std::byte> bytes,
                                                     const fs::path& path) {
  checkpoint::Safetensors content = checkpoint::parse_safetensors(bytes, path.string());
  const std::size_t first = tensors.size();
  for (checkpoint::SafetensorsEntry& entry : content.tensors) {
    tensors.push_back({.name = std::move(entry.name), .view = std::move(entry.view), .file = path});
  }
  metadata.merge(content.metadata);
  files.push_back(path);
  file_bytes += bytes.size();
  return std::span(tensors).subspan(first);
}

void Checkpoint::State::open_file(const fs::path& path) {
  directory = folder_of(path);
  add_file(path);
  sort_tensors();
}

void Checkpoint::State::open_index(const fs::path& path) {
  directory = folder_of(path);
  const MappedFile mapping = MappedFile::open(path);
  refuse_strangers(path, mapping.bytes());
  const WeightMap map = checkpoint::parse_shard_index(mapping.text(), path.string());
  std::set<std::string_view> shards;
  for (const auto& [tensor, file] : map) shards.insert(file);
  check_shards_exist(shards, path);
  for (const std::string_view shard : shards) {
    check_shard_against_index(add_file(directory / shard), map);
  }
  sort_tensors();
  // Every tensor found is in the index, once; now the other direction.
  auto found = tensors.begin();
  for (const auto& [tensor, file] : map) {
    if (found == tensors.end() || found->name != tensor) {
      refuse(directory / file, tensor_label(tensor) + ": expected here by " +
                                   path_label(path.filename()) + ", not found");
    }
    ++found;
  }
}

/// Without an index, names like "model-00001-of-00003.safetensors" still say how many there should
/// be.
static void check_series_complete(const std::vector<fs::path>& shards, const fs::path& folder) {
  static const std::string_view of = "-of-";
  std::map<std::string, std::pair<int, int>> series;  // what follows "-of-": wanted, found
  for (const fs::path& shard : shards) {
    const std::string stem = shard.stem().string();
    const std::size_t at = stem.rfind(of);
    if (at == std::string::npos || at < 6 || stem[at - 6] != '-') continue;
    int wanted = 0;
    const char* end = stem.data() + stem.size();
    const auto [stop, error] = std::from_chars(stem.data() + at + of.size(), end, wanted);
    if (error != std::errc() || stop != end) continue;
    auto& [all, found] = series[stem.substr(0, at - 5) + "*" + stem.substr(at)];
    all = wanted;
    ++found;
  }
  for (const auto& [name, counts] : series) {
    if (counts.first == counts.second) continue;
    refuse(folder, checkpoint::count_label(static_cast<std::uint64_t>(counts.first), "file") +
                       " of the series \"" + checkpoint::printable(name) + "\" expected, " +
                       std::to_string(counts.second) +
                       " found, and no index: incomplete download?");
  }
}

void Checkpoint::State::open_folder(const fs::path& path) {
  std::error_code ignored;
  if (fs::symlink_status(path / kIndexName, ignored).type() != fs::file_type::not_found) {
    open_index(path / kIndexName);
    directory = path;
    return;
  }
  directory = path;
  const std::vector<fs::path> shards = files_with(path, ".safetensors");
  if (shards.empty()) {
    const bool gguf = !files_with(path, ".gguf").empty();
    refuse(path, std::string(kIndexName) +
                     " or a .safetensors file expected, no .safetensors file found" +
                     (gguf ? ", only GGUF files, which hold other formats" : ""));
  }
  check_series_complete(shards, path);
  for (const fs::path& shard : shards) add_file(shard);
  sort_tensors();
}

void Checkpoint::State::sort_tensors() {
  std::stable_sort(tensors.begin(), tensors.end(), by_name);
  const auto same_name = [](const Tensor& a, const Tensor& b) { return a.name == b.name; };
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(), same_name);
  if (twice == tensors.end()) return;
  refuse(directory, tensor_label(twice->name) + ": one file expected, found in " +
                        path_label(twice->file.filename()) + " and in " +
                        path_label((twice + 1)->file.filename()));
}

Checkpoint Checkpoint::open(const fs::path& path) {
  auto state = std::make_unique<State>();
  std::error_code ignored;  // the mapping reports it
  if (fs::is_directory(path, ignored)) {
    state->open_folder(path);
  } else if (path.extension() == ".json") {
    state->open_index(path);
  } else {
    state->open_file(path);
  }
  return Checkpoint(std::move(state));
}

Checkpoint Checkpoint::from_bytes(std::span<const std::byte> file, const fs::path& name) {
  auto state = std::make_unique<State>();
  state->directory = folder_of(name);
  state->add_bytes(file, name);
  state->sort_tensors();
  return Checkpoint(std::move(state));
}

Checkpoint::Checkpoint(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const std::vector<Tensor>& Checkpoint::tensors() const noexcept { return state_->tensors; }

const Tensor* Checkpoint::find(std::string_view name) const noexcept {
  const std::vector<Tensor>& all = state_->tensors;
  const auto place = std::lower_bound(
      all.begin(), all.end(), name,
      [](const Tensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return place != all.end() && place->name == name ? &*place : nullptr;
}

const Tensor& Checkpoint::at(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor != nullptr) return *tensor;
  refuse(directory(), tensor_label(name) + ": expected, not found among " +
                          count_label(tensors().size(), "tensor"));
}

const std::map<std::string, std::string>& Checkpoint::metadata() const noexcept {
  return state_->metadata;
}

const fs::path& Checkpoint::directory() const noexcept { return state_->directory; }

const std::vector<fs::path>& Checkpoint::files() const noexcept { return state_->files; }

std::uint64_t Checkpoint::file_bytes() const noexcept { return state_->file_bytes; }

}  // namespace deepinfer
