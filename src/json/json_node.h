// Reading JSON from a file that nobody vouches for: each value knows its file and its member path,
// so that every complaint can name both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace deepinfer::json {

using Json = nlohmann::json;

/// Three times the largest published tokenizer.json.
inline constexpr std::size_t kMaxJsonBytes = 100'000'000;

/// Arrays and objects inside each other. Copying, printing and destroying a tree recurse, so this
/// bounds the stack; published files have a depth of about 10.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// The bytes of a file of at most kMaxJsonBytes. Throws Error(kBadInput) if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Parses JSON, strictly: equal members of one object are refused, since two readers could see two
/// different files. Throws Error(kBadInput) naming `file`.
Json parse_json(std::string_view bytes, const std::string& file);

/// The value, if it is an integer that fits.
std::optional<std::int64_t> integer_of(const Json& value);

/// A value with its name. Does not own the value, nor the name of the file.
class JsonNode {
 public:
  JsonNode(const Json& value, const std::string& file) : value_(&value), file_(&file) {}

  /// Member `name` of this object; a missing member reads as null.
  JsonNode operator[](std::string_view name) const;

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
