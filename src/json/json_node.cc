// JSON values that can name themselves.
#include "json/json_node.h"

#include <limits>
#include <utility>

#include "deepinfer/error.h"
#include "json/quoted.h"

namespace deepinfer::json {
namespace {

const Json& null_value() {
  static const Json value;
  return value;
}

std::string describe(const Json& value) {
  if (value.is_null()) return "nothing";
  if (value.is_string()) return "the string " + in_quotes(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  return value.dump();
}

}  // namespace

std::optional<std::int64_t> integer_of(const Json& value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMax);
  return fits ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

JsonNode JsonNode::operator[](std::string_view name) const {
  const Json& members = object();
  const auto found = members.find(name);
  return JsonNode(found == members.end() ? null_value() : *found, *file_,
                  (path_.empty() ? "" : path_ + ".") + shortened(name));
}

JsonNode JsonNode::operator[](std::size_t i) const {
  return JsonNode(array().at(i), *file_, path_ + "[" + std::to_string(i) + "]");
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

bool JsonNode::boolean_or(bool otherwise) const { return is_null() ? otherwise : boolean(); }

std::int64_t JsonNode::integer() const {
  const std::optional<std::int64_t> value = integer_of(*value_);
  if (!value) expected("an integer");
  return *value;
}

const Json& JsonNode::object() const {
  if (!value_->is_object()) expected("an object");
  return *value_;
}

const Json& JsonNode::array() const {
  if (!value_->is_array()) expected("an array");
  return *value_;
}

void JsonNode::bad(const std::string& message) const {
  throw Error(ErrorCode::kBadInput, where() + ": " + message);
}

void JsonNode::unsupported(const std::string& message) const {
  throw Error(ErrorCode::kUnsupported, where() + ": " + message);
}

void JsonNode::expected(std::string_view type) const {
  bad("expected " + std::string(type) + ", found " + describe(*value_));
}

}  // namespace deepinfer::json
