// Reading JSON from a file that nobody vouches for: each value knows its file and its member path,
// so that every complaint can name both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace deepinfer::json {

using Json = nlohmann::json;

/// The bytes of a file. Throws Error(kBadInput) if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Parses JSON. Throws Error(kBadInput) naming `file`.
Json parse_json(std::string_view bytes, const std::string& file);

/// The value, if it is an integer that fits.
std::optional<std::int64_t> integer_of(const Json& value);

/// A value with its name. Does not own the value, nor the name of the file.
class JsonNode {
 public:
  JsonNode(const Json& value, const std::string& file) : value_(&value), file_(&file) {}

  /// Member `name` of this object; a missing member reads as null.
  JsonNode operator[](const char* name) const;

  /// Element `i` of this array.
  JsonNode operator[](std::size_t i) const;

  const Json& value() const noexcept { return *value_; }
  bool is_null() const noexcept { return value_->is_null(); }

  // The value as a type. Each throws Error(kBadInput) for any other type.
  const std::string& string() const;
  bool boolean() const;
  bool boolean_or(bool otherwise) const;  ///< null or missing: `otherwise`
  std::int64_t integer() const;
  const Json& object() const;
  const Json& array() const;

  /// "tokenizer.json: model.vocab"
  std::string where() const { return *file_ + ": " + (path_.empty() ? "top level" : path_); }

  [[noreturn]] void bad(const std::string& message) const;
  [[noreturn]] void unsupported(const std::string& message) const;

 private:
  JsonNode(const Json& value, const std::string& file, std::string path)
      : value_(&value), file_(&file), path_(std::move(path)) {}

  [[noreturn]] void expected(std::string_view type) const;

  const Json* value_;
  const std::string* file_;
  std::string path_;
};

}  // namespace deepinfer::json
