// Typed reading of config.json: every message names the file, the member and what was found.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::models {

class Config {
 public:
  /// Reads a JSON object from a file; throws Error(kBadInput) when it is missing or damaged.
  static Config from_file(const std::filesystem::path& file);

  /// The same for text that is in memory; `file` is for messages only.
  static Config from_text(std::string_view text, const std::filesystem::path& file);

  bool has(const char* key) const;  // present and not null
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t low,
                          std::int64_t high) const;
  double number(const char* key) const;
  double number_or(const char* key, double fallback) const;
  std::string text(const char* key) const;
  bool flag_or(const char* key, bool fallback) const;
  /// A number or an array of numbers; empty when absent.
  std::vector<std::int32_t> ids(const char* key) const;

  const nlohmann::json& json() const noexcept { return json_; }
  const std::filesystem::path& file() const noexcept { return file_; }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const;
  [[noreturn]] void unsupported(const char* key, const std::string& why) const;

 private:
  std::filesystem::path file_;
  nlohmann::json json_;
};

}  // namespace deepinfer::models
