// Added tokens in a text: always the leftmost, and of those that start there the longest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/byte_level.h"

namespace deepinfer::text {

/// A set of added tokens, as a trie.
class AddedTokens {
 public:
  AddedTokens() noexcept;

  /// `content` is not empty. Of tokens with equal content the first stays.
  void add(std::string_view content, std::int32_t id, bool special);

  /// Cuts `text` at the added tokens: calls `on_text` with each stretch between them that is not
  /// empty and `on_token` with the id of each. A special token is cut out only if `parse_special`;
  /// if not, it still hides tokens that overlap it (as the reference implementation has it).
  template <typename OnText, typename OnToken>
  void split(std::string_view text, bool parse_special, OnText on_text, OnToken on_token) const {
    std::size_t begin = 0;
    std::size_t i = 0;
    while (i < text.size()) {
      const Match match = longest_at(text.substr(i));
      if (match.length != 0 && (parse_special || !match.special)) {
        if (i > begin) on_text(text.substr(begin, i - begin));
        on_token(match.id);
        begin = i + match.length;
      }
      i += match.length != 0 ? match.length : 1;
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

  std::size_t memory_bytes() const noexcept { return nodes_.capacity() * sizeof(Node); }

 private:
  struct Match {
    std::size_t length = 0;  // 0: none
    std::int32_t id = -1;
    bool special = false;
  };

  struct Node {
    std::int32_t first_child = -1;
    std::int32_t next_sibling = -1;
    std::int32_t id = -1;  // -1: no token ends here
    std::uint8_t byte = 0;
    bool special = false;
  };

  Match longest_at(std::string_view text) const noexcept {
    const std::int32_t root = roots_[static_cast<unsigned char>(text.front())];
    return root < 0 ? Match{} : walk(root, text);
  }
  Match walk(std::int32_t node, std::string_view text) const noexcept;
  std::int32_t child(std::int32_t node, std::uint8_t byte) const noexcept;

  std::array<std::int32_t, kNumBytes> roots_;  // by first byte, which rules out most places
  std::vector<Node> nodes_;
};

}  // namespace deepinfer::text
