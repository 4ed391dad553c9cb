// The trie: children are linked lists, since all but the first few nodes have one child.
#include "text/added_tokens.h"

namespace deepinfer::text {

AddedTokens::AddedTokens() noexcept { roots_.fill(-1); }

std::int32_t AddedTokens::child(std::int32_t node, std::uint8_t byte) const noexcept {
  std::int32_t next = nodes_[static_cast<std::size_t>(node)].first_child;
  while (next >= 0 && nodes_[static_cast<std::size_t>(next)].byte != byte) {
    next = nodes_[static_cast<std::size_t>(next)].next_sibling;
  }
  return next;
}

void AddedTokens::add(std::string_view content, std::int32_t id, bool special) {
  std::int32_t node = -1;
  for (const char c : content) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::int32_t next = node < 0 ? roots_[byte] : child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      std::int32_t& head =
          node < 0 ? roots_[byte] : nodes_[static_cast<std::size_t>(node)].first_child;
      const std::int32_t sibling = node < 0 ? -1 : head;
      head = next;
      nodes_.push_back(Node{.next_sibling = sibling, .byte = byte});
    }
    node = next;
  }
  Node& last = nodes_[static_cast<std::size_t>(node)];
  if (last.id >= 0) return;
  last.id = id;
  last.special = special;
}

AddedTokens::Match AddedTokens::walk(std::int32_t node, std::string_view text) const noexcept {
  Match match;
  for (std::size_t length = 1; node >= 0; ++length) {
    const Node& here = nodes_[static_cast<std::size_t>(node)];
    if (here.id >= 0) match = Match{length, here.id, here.special};
    if (length == text.size()) break;
    node = child(node, static_cast<std::uint8_t>(text[length]));
  }
  return match;
}

}  // namespace deepinfer::text
