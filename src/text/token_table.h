// The tokens by id and by name. All bytes lie in one string: a vocabulary has 50 to 200 thousand
// tokens, and an object for each would double its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::text {

class TokenTable {
 public:
  /// The bytes of a token of the vocabulary are spelled in the byte alphabet; those of a token
  /// that was only added, or has a character outside of the alphabet, are its text as it stands.
  enum class Spelling : std::uint8_t { kByteLevel, kLiteral };

  /// Appends the token with the next id.
  void add(std::string_view bytes, Spelling spelling, bool special);

  /// Ends the adding: builds the search by name.
  void build_index();

  std::int32_t size() const noexcept { return static_cast<std::int32_t>(special_.size()); }
  std::string_view bytes(std::int32_t id) const noexcept;
  Spelling spelling(std::int32_t id) const noexcept {
    return spelling_[static_cast<std::size_t>(id)];
  }
  bool special(std::int32_t id) const noexcept {
    return special_[static_cast<std::size_t>(id)] != 0;
  }

  /// The lowest id with these bytes in this spelling.
  std::optional<std::int32_t> find_bytes(std::string_view bytes, Spelling spelling) const noexcept;

  std::size_t memory_bytes() const noexcept;

 private:
  std::size_t slot_of(std::string_view bytes, Spelling spelling) const noexcept;

  std::string arena_;                // the bytes of all tokens, joined
  std::vector<std::uint32_t> ends_;  // [size], end of each token in arena_
  std::vector<Spelling> spelling_;   // [size]
  std::vector<std::uint8_t> special_;
  std::vector<std::int32_t> index_;  // hash table of ids, -1 free, at most half in use
};

}  // namespace deepinfer::text
