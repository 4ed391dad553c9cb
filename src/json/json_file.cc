// From a file to a JSON tree, with bounds on everything that a hostile file could make large.
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "deepinfer/error.h"
#include "json/json_node.h"
#include "json/quoted.h"

namespace deepinfer::json {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& fault) {
  throw Error(ErrorCode::kBadInput, file + ": " + fault);
}

[[noreturn]] void refuse_size(const std::string& file, const std::string& found) {
  refuse(file, "expected at most " + std::to_string(kMaxJsonBytes) + " bytes, found " + found);
}

/// Builds the tree. The parser of the library would keep the last of two equal members, and build
/// trees of any depth.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const std::string& file) : file_(file) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& /*written*/) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t& value) override { return add(std::move(value)); }
  bool start_object(std::size_t /*unknown*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*unknown*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [place, is_new] = members.try_emplace(name);
    if (!is_new) refuse(file_, "expected each member once, found " + in_quotes(name) + " twice");
    member_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Json::exception& error) override {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr) {
      refuse(file_, "expected JSON, found a number out of range");
    }
    refuse(file_, "expected JSON, found an error at byte " + std::to_string(position));
  }

 private:
  Json& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *member_;
    return open_.back()->emplace_back();
  }

  bool add(Json value) {
    place() = std::move(value);
    return true;
  }

  bool open(Json value) {
    if (open_.size() == kMaxJsonDepth) {
      refuse(file_, "expected at most " + std::to_string(kMaxJsonDepth) +
                        " arrays and objects inside each other, found more");
    }
    Json& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& file_;
  Json root_;
  std::vector<Json*> open_;  // from the root inwards; only the innermost one grows
  Json* member_ = nullptr;   // of the innermost object, whose value comes next
};

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // Asked first: opening a FIFO would wait for its writer, and opening a device may do anything.
  if (status.type() == std::filesystem::file_type::not_found) {
    refuse(file, "expected a file, found none");
  }
  if (!std::filesystem::status_known(status)) refuse(file, "cannot be read: " + error.message());
  if (!std::filesystem::is_regular_file(status)) {
    refuse(file, "expected a file, found something else");
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(path.c_str(), "rbe"),
                                                               std::fclose);
  const auto fail = [&] {
    refuse(file, "cannot be read: " + std::generic_category().message(errno));
  };
  if (stream == nullptr) fail();
  std::string bytes;
  while (true) {
    constexpr std::size_t kPiece = std::size_t{1} << 16;
    const std::size_t size = bytes.size();
    bytes.resize(size + kPiece);
    const std::size_t count = std::fread(bytes.data() + size, 1, kPiece, stream.get());
    bytes.resize(size + count);
    if (bytes.size() > kMaxJsonBytes) refuse_size(file, "more");
    if (count == kPiece) continue;
    if (std::ferror(stream.get()) != 0) fail();
    return bytes;
  }
}

Json parse_json(std::string_view bytes, const std::string& file) {
  if (bytes.size() > kMaxJsonBytes) refuse_size(file, std::to_string(bytes.size()));
  StrictBuilder builder(file);
  Json::sax_parse(bytes, &builder);  // faults are thrown
  return builder.take();
}

}  // namespace deepinfer::json
