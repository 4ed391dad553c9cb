#include "models/config.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "deepinfer/error.h"
#include "json/json_node.h"
#include "json/quoted.h"

namespace deepinfer::models {
namespace {

std::string shown(const nlohmann::json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return "nothing";
  return json::shortened(at->dump());
}

}  // namespace

Config Config::from_file(const std::filesystem::path& file) {
  return from_text(json::read_file(file), file);
}

Config Config::from_text(std::string_view text, const std::filesystem::path& file) {
  Config config;
  config.file_ = file;
  config.json_ = json::parse_json(text, file.string());
  if (!config.json_.is_object()) {
    throw Error(ErrorCode::kBadInput, fmt::format("{}: is not a JSON object", file.string()));
  }
  return config;
}

bool Config::has(const char* key) const {
  const auto at = json_.find(key);
  return at != json_.end() && !at->is_null();
}

void Config::refuse(const char* key, const std::string& expected) const {
  throw Error(ErrorCode::kBadInput, fmt::format("{}: {}: expected {}, found {}", file_.string(),
                                                key, expected, shown(json_, key)));
}

void Config::unsupported(const char* key, const std::string& why) const {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: {} {}: {}", file_.string(), key, shown(json_, key), why));
}

std::int64_t Config::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const std::string expected = fmt::format("a whole number from {} to {}", low, high);
  if (!has(key) || !json_[key].is_number_integer()) refuse(key, expected);
  const auto value = json_[key].get<std::int64_t>();
  if (value < low || value > high) refuse(key, expected);
  return value;
}

std::int64_t Config::integer_or(const char* key, std::int64_t fallback, std::int64_t low,
                                std::int64_t high) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double Config::number(const char* key) const {
  if (!has(key) || !json_[key].is_number()) refuse(key, "a number");
  const auto value = json_[key].get<double>();
  if (!std::isfinite(value)) refuse(key, "a finite number");
  return value;
}

double Config::number_or(const char* key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

std::string Config::text(const char* key) const {
  if (!has(key) || !json_[key].is_string()) refuse(key, "a string");
  return json_[key].get<std::string>();
}

bool Config::flag_or(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_[key].is_boolean()) refuse(key, "true or false");
  return json_[key].get<bool>();
}

std::vector<std::int32_t> Config::ids(const char* key) const {
  std::vector<std::int32_t> out;
  if (!has(key)) return out;
  const nlohmann::json one = nlohmann::json::array({json_[key]});
  for (const nlohmann::json& id : json_[key].is_array() ? json_[key] : one) {
    const std::optional<std::int64_t> value = json::integer_of(id);
    if (!value || *value < 0 || *value > std::numeric_limits<std::int32_t>::max()) {
      refuse(key, "token ids");
    }
    out.push_back(static_cast<std::int32_t>(*value));
  }
  return out;
}

}  // namespace deepinfer::models
