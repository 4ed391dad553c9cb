#include "checkpoint/shard_index.h"

#include <set>
#include <utility>

#include "checkpoint/json_scanner.h"
#include "checkpoint/message.h"

namespace deepinfer::checkpoint {
namespace {

/// A backslash is a separator elsewhere, and a NUL would end the name early at the system call.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

WeightMap read_weight_map(JsonScanner& scanner) {
  WeightMap map;
  scanner.read_object([&](std::string name) {
    const auto [place, is_new] = map.try_emplace(std::move(name));
    const std::string label = tensor_label(place->first);
    if (!is_new) scanner.fail(label + " appears twice");
    scanner.set_subject(label);
    place->second = scanner.read_string();
    if (!is_plain_file_name(place->second)) {
      scanner.fail("plain file name expected, \"" + printable(place->second) + "\" found");
    }
    scanner.set_subject("");
  });
  if (map.empty()) scanner.fail("\"weight_map\" is empty, at least one tensor expected");
  return map;
}

}  // namespace

WeightMap parse_shard_index(std::string_view text, const std::string& file_name) {
  JsonScanner scanner(text, printable(file_name, file_name.size()) + ": index");
  WeightMap map;
  std::set<std::string> members;
  scanner.read_object([&](std::string key) {
    const auto [place, is_new] = members.insert(std::move(key));
    if (!is_new) scanner.fail("member \"" + printable(*place) + "\" appears twice");
    if (*place == "weight_map") {
      map = read_weight_map(scanner);
    } else {
      scanner.skip_value();
    }
  });
  scanner.expect_end();
  if (map.empty()) scanner.fail("member \"weight_map\" is missing");
  return map;
}

}  // namespace deepinfer::checkpoint
