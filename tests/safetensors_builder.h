// Builds small safetensors files for tests, in memory or on disk: good ones with
// SafetensorsBuilder, broken ones with raw_safetensors. The layout is that of the published writer
// except for the order: tensors keep the order of the add() calls.
//
//   TempDir dir;
//   SafetensorsBuilder()
//       .add("w", DType::kF32, {2, 2}, std::vector<float>{1, 2, 3, 4})
//       .metadata("format", "pt")
//       .write(dir.path() / "model.safetensors");
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "deepinfer/tensor.h"

namespace deepinfer::testing {

/// A folder that is removed, with its content, at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "deepinfer-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline void write_file(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  write_file(path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// A file with this header text, whatever it says, and these data bytes. `header_size` replaces the
/// length field when it is not the length of the text.
inline std::vector<std::byte> raw_safetensors(std::string_view header,
                                              const std::vector<std::byte>& data,
                                              std::uint64_t header_size) {
  std::vector<std::byte> file;
  file.reserve(sizeof header_size + header.size() + data.size());
  for (int shift = 0; shift < 64; shift += 8) {
    file.push_back(static_cast<std::byte>((header_size >> shift) & 0xff));
  }
  for (char c : header) file.push_back(static_cast<std::byte>(c));
  file.insert(file.end(), data.begin(), data.end());
  return file;
}

inline std::vector<std::byte> raw_safetensors(std::string_view header,
                                              const std::vector<std::byte>& data = {}) {
  return raw_safetensors(header, data, header.size());
}

/// `text` as a JSON string, with its quotes.
inline std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

class SafetensorsBuilder {
 public:
  /// Adds a tensor; `values` are its bytes, in any trivially copyable type. The size is not checked
  /// against the shape, so that broken files can be built too.
  template <typename T>
  SafetensorsBuilder& add(std::string_view name, DType dtype,
                          const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t begin = data_.size();
    data_.resize(begin + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(data_.data() + begin, values.data(), data_.size() - begin);
    std::string entry =
        json_string(name) + ":{\"dtype\":\"" + std::string(dtype_name(dtype)) + "\",\"shape\":[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (i != 0) entry += ",";
      entry += std::to_string(shape[i]);
    }
    entry +=
        "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data_.size()) + "]}";
    entries_.push_back(std::move(entry));
    return *this;
  }

  SafetensorsBuilder& metadata(const std::string& key, const std::string& value) {
    metadata_[key] = value;
    return *this;
  }

  /// Makes the data start at an odd file offset; it starts at a multiple of 8 otherwise.
  SafetensorsBuilder& odd_data_start() {
    data_start_remainder_ = 1;
    return *this;
  }

  /// The header text with its padding.
  std::string header() const {
    std::string text = "{";
    if (!metadata_.empty()) {
      text += "\"__metadata__\":{";
      for (const auto& [key, value] : metadata_) {
        text += json_string(key) + ":" + json_string(value) + ",";
      }
      text.back() = '}';
      text += ',';
    }
    for (const std::string& entry : entries_) text += entry + ",";
    if (text.back() == ',') text.pop_back();
    text += '}';
    while (text.size() % 8 != data_start_remainder_) text += ' ';
    return text;
  }

  std::vector<std::byte> to_bytes() const { return raw_safetensors(header(), data_); }

  void write(const std::filesystem::path& path) const { write_file(path, to_bytes()); }

 private:
  std::vector<std::string> entries_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::byte> data_;
  std::size_t data_start_remainder_ = 0;
};

/// Writes `model.safetensors.index.json`, or another index, from tensor names to file names.
inline void write_index(const std::filesystem::path& path,
                        const std::map<std::string, std::string>& weight_map) {
  std::string text = "{\"metadata\":{\"total_size\":0},\"weight_map\":{";
  for (const auto& [tensor, file] : weight_map) {
    text += json_string(tensor) + ":" + json_string(file) + ",";
  }
  if (text.back() == ',') text.pop_back();
  write_file(path, text + "}}\n");
}

}  // namespace deepinfer::testing
