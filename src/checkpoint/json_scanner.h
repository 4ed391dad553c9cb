// A strict scanner for the two JSON texts of a checkpoint: the safetensors header and the shard
// index. JSON libraries keep the last of two equal keys and turn 1e3 or 1.0 into integers without a
// word; in a hostile file both are ways to make two readers see two different files, so here the
// caller sees every key and every number as it was written.
//
// Nothing is built: the caller reads the values that it expects, in the order of the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace deepinfer::checkpoint {

/// Reads one JSON text from front to back. Every fault is thrown as Error(kBadInput).
class JsonScanner {
 public:
  /// The largest integer that the safetensors schema allows, 2^48 - 1.
  static constexpr std::uint64_t kMaxSize = 281474976710655;

  /// `where` opens every message, e.g. "model.safetensors: header". `text` must outlive this.
  JsonScanner(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  /// Names what is being read, e.g. a tensor, in the messages that follow; "" for nothing.
  void set_subject(std::string subject) { subject_ = std::move(subject); }

  /// Calls on_member(key) for each member; it must read the value. Equal keys are not looked for.
  template <typename OnMember>
  void read_object(OnMember&& on_member) {
    expect('{');
    if (accept('}')) return;
    do {
      std::string key = read_string();
      expect(':');
      on_member(std::move(key));
    } while (accept(','));
    expect('}');
  }

  /// Calls on_item() for each item; it must read the item.
  template <typename OnItem>
  void read_array(OnItem&& on_item) {
    expect('[');
    if (accept(']')) return;
    do {
      on_item();
    } while (accept(','));
    expect(']');
  }

  /// A string with its escapes resolved; valid UTF-8.
  std::string read_string();

  /// An integer from 0 to kMaxSize, written in digits only.
  std::uint64_t read_size();

  /// Checks and passes over any value. Equal keys in one object are refused.
  void skip_value() { skip_value(0); }

  /// Throws unless only white space is left.
  void expect_end();

  /// Bytes read so far.
  std::size_t position() const noexcept { return pos_; }

  /// Throws an Error that names the place, the subject and the fault.
  [[noreturn]] void fail(const std::string& fault) const;

 private:
  char peek() const noexcept { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  void skip_space() noexcept;
  bool accept(char c) noexcept;
  void expect(char c);
  void read_escape(std::string& out);
  std::uint32_t read_hex4();
  void skip_value(int depth);
  void skip_digits();
  void skip_number();
  std::string found() const;

  std::string_view text_;
  std::string where_;
  std::string subject_;
  std::size_t pos_ = 0;
};

}  // namespace deepinfer::checkpoint
