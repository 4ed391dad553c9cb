// Search by name: a flat hash table of ids with linear probing; the names stay in the arena.
#include "text/token_table.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace deepinfer::text {

void TokenTable::add(std::string_view bytes, Spelling spelling, bool special) {
  arena_.append(bytes);
  ends_.push_back(static_cast<std::uint32_t>(arena_.size()));
  spelling_.push_back(spelling);
  special_.push_back(special ? 1 : 0);
}

std::string_view TokenTable::bytes(std::int32_t id) const noexcept {
  const auto i = static_cast<std::size_t>(id);
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(arena_).substr(begin, ends_[i] - begin);
}

std::size_t TokenTable::slot_of(std::string_view name, Spelling spelling) const noexcept {
  std::size_t i = std::hash<std::string_view>()(name) & (index_.size() - 1);
  while (index_[i] >= 0 && (this->spelling(index_[i]) != spelling || bytes(index_[i]) != name)) {
    i = (i + 1) & (index_.size() - 1);
  }
  return i;
}

void TokenTable::build_index() {
  arena_.shrink_to_fit();
  ends_.shrink_to_fit();
  spelling_.shrink_to_fit();
  special_.shrink_to_fit();
  index_.assign(std::bit_ceil(std::max<std::size_t>(2 * special_.size(), 2)), -1);
  for (std::int32_t id = 0; id < size(); ++id) {
    std::int32_t& slot = index_[slot_of(bytes(id), spelling(id))];
    if (slot < 0) slot = id;
  }
}

std::optional<std::int32_t> TokenTable::find_bytes(std::string_view name,
                                                   Spelling spelling) const noexcept {
  const std::int32_t id = index_[slot_of(name, spelling)];
  return id < 0 ? std::nullopt : std::optional(id);
}

std::size_t TokenTable::memory_bytes() const noexcept {
  return arena_.capacity() + ends_.capacity() * sizeof(std::uint32_t) + spelling_.capacity() +
         special_.capacity() + index_.capacity() * sizeof(std::int32_t);
}

}  // namespace deepinfer::text
