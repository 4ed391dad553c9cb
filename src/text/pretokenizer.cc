// The steps run depth first, piece by piece, so that no list of pieces is ever stored.
#include "text/pretokenizer.h"

#include <optional>
#include <utility>

#include "text/utf8.h"

namespace deepinfer::text {

void PreTokenizer::add_split(Regex regex, bool keep_matches) {
  steps_.push_back(Step{std::move(regex), keep_matches});
}

void PreTokenizer::add_prefix_space() { steps_.emplace_back(); }

void PreTokenizer::run(std::size_t step, std::string_view piece, RegexScratch& scratch,
                       const OnWord& on_word) const {
  if (piece.empty()) return;
  if (step == steps_.size()) return on_word(piece);
  if (steps_[step].regex) return cut(step, piece, scratch, on_word);
  if (piece.front() == ' ') return run(step + 1, piece, scratch, on_word);
  std::string prefixed(" ");
  prefixed.append(piece);
  run(step + 1, prefixed, scratch, on_word);
}

void PreTokenizer::cut(std::size_t step, std::string_view piece, RegexScratch& scratch,
                       const OnWord& on_word) const {
  const Regex& regex = *steps_[step].regex;
  std::size_t begin = 0;  // of what is not yet handed on
  std::size_t start = 0;  // of the search
  while (start <= piece.size()) {
    const std::optional<Regex::Match> match = regex.find(piece, start, scratch);
    if (!match) break;
    run(step + 1, piece.substr(begin, match->begin - begin), scratch, on_word);
    if (steps_[step].keep_matches) {
      run(step + 1, piece.substr(match->begin, match->end - match->begin), scratch, on_word);
    }
    begin = match->end;
    start = match->end;
    // An empty match only marks a border; the search goes on one character later.
    if (match->begin == match->end) {
      start += start < piece.size() ? next_utf8(piece.substr(start)).length : 1;
    }
  }
  run(step + 1, piece.substr(begin), scratch, on_word);
}

std::size_t PreTokenizer::memory_bytes() const noexcept {
  std::size_t bytes = steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) {
    if (step.regex) bytes += step.regex->memory_bytes();
  }
  return bytes;
}

}  // namespace deepinfer::text
