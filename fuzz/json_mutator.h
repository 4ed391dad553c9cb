// Mutations of JSON texts that mostly stay JSON. Flips of bytes nearly always break the syntax, so
// that nothing behind the parser would be tested; here they are a tenth of all mutations.
//
// Values and items are spans of the text, and a mutation is one splice: there is no tree, which
// would cost more than the code under test, and equal members can be made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace deepinfer::fuzz {

using Random = std::minstd_rand;

inline std::size_t below(Random& random, std::size_t bound) { return random() % bound; }

template <typename List>
const auto& any_of(Random& random, const List& list) {
  return list[below(random, list.size())];
}

/// The fuzzer's own mutations: bytes, and words of its dictionary.
inline void mutate_bytes(std::string& text, std::size_t max_size) {
  const std::size_t size = std::min(text.size(), max_size);
  text.resize(max_size);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(text.data()), size, max_size));
}

struct Span {
  std::size_t begin;
  std::size_t end;
};

/// Finds the spans of a JSON text; hardly checks anything that the text under test should.
class JsonSpans {
 public:
  explicit JsonSpans(std::string_view text) : text_(text) { good_ = value(0) && !values.empty(); }

  bool good() const { return good_; }

  std::vector<Span> values;
  std::vector<Span> items;  // members with their names, and elements of arrays

 private:
  char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void space() {
    while (here() == ' ' || here() == '\n' || here() == '\r' || here() == '\t') ++at_;
  }

  bool string() {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        return true;
      }
    }
    return false;
  }

  bool container(int depth, bool is_object) {
    ++at_;
    for (space(); here() != '}' && here() != ']'; space()) {
      const std::size_t begin = at_;
      if (is_object) {
        if (here() != '"' || !string()) return false;
        space();
        if (here() != ':') return false;
        ++at_;
      }
      if (!value(depth + 1)) return false;
      items.push_back({begin, at_});
      space();
      if (here() == ',') ++at_;
    }
    ++at_;
    return true;
  }

  bool value(int depth) {
    constexpr int kDeepest = 100;
    space();
    const std::size_t begin = at_;
    const char c = here();
    if (c == '{' || c == '[') {
      if (depth == kDeepest || !container(depth, c == '{')) return false;
    } else if (c == '"') {
      if (!string()) return false;
    } else {
      at_ = std::min(text_.find_first_of(",]} \n", at_), text_.size());
      if (at_ == begin) return false;
    }
    values.push_back({begin, at_});
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool good_ = false;
};

inline std::string quoted_word(Random& random, std::span<const std::string_view> words) {
  if (below(random, 8) == 0) return std::string("\"") + "abcd"[below(random, 4)] + "\"";
  std::string out = "\"";
  for (const char c : any_of(random, words)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out + '"';
}

inline std::string literal(Random& random, std::span<const std::string_view> words) {
  static const std::vector<std::string_view> literals = {"null",
                                                         "true",
                                                         "false",
                                                         "0",
                                                         "1",
                                                         "2",
                                                         "3",
                                                         "31",
                                                         "32",
                                                         "33",
                                                         "64",
                                                         "128",
                                                         "-1",
                                                         "-0",
                                                         "0.5",
                                                         "1e300",
                                                         "1e3",
                                                         "4096",
                                                         "2147483648",
                                                         "[]",
                                                         "{}",
                                                         "\"\"",
                                                         "281474976710655",
                                                         "9223372036854775808"};
  if (below(random, 3) == 0) return quoted_word(random, words);
  return std::string(any_of(random, literals));
}

/// A scalar near the one that is there.
inline std::string changed_scalar(std::string value, Random& random,
                                  std::span<const std::string_view> words) {
  if (value.size() > 2 && value.front() == '"') {
    std::string inner = value.substr(1, value.size() - 2);
    mutate_bytes(inner, inner.size() + 4);
    return '"' + inner + '"';
  }
  constexpr std::size_t kMostDigits = 15;
  const bool is_number = !value.empty() && value.size() <= kMostDigits &&
                         value.find_first_not_of("0123456789") == value.npos;
  if (!is_number) return literal(random, words);
  const std::uint64_t number = std::stoull(value);
  const std::uint64_t choices[] = {number + 1, number - 1, 2 * number, number / 2};
  return std::to_string(choices[below(random, std::size(choices))]);
}

/// One splice.
inline void mutate_spans(std::string& text, const JsonSpans& spans, Random& random,
                         std::span<const std::string_view> words) {
  const auto copy = [&](Span span) { return text.substr(span.begin, span.end - span.begin); };
  const auto replace = [&](Span span, const std::string& by) {
    text.replace(span.begin, span.end - span.begin, by);
  };
  const Span value = any_of(random, spans.values);
  const std::size_t choice = below(random, 7);
  if (choice == 0) return replace(value, literal(random, words));
  if (choice == 1) return replace(value, copy(any_of(random, spans.values)));
  if (choice <= 3 || spans.items.empty()) {
    return replace(value, changed_scalar(copy(value), random, words));
  }
  const Span item = any_of(random, spans.items);
  if (choice == 4) {  // remove it, with its comma
    const bool comma_follows = item.end < text.size() && text[item.end] == ',';
    const bool comma_before = !comma_follows && text[item.begin - 1] == ',';
    return replace({item.begin - (comma_before ? 1 : 0), item.end + (comma_follows ? 1 : 0)}, "");
  }
  if (choice == 5) {  // put another one in front
    text.insert(item.begin, copy(any_of(random, spans.items)) + ',');
    return;
  }
  const bool is_member = copy(item).find("\":") != std::string::npos;
  text.insert(item.begin,
              (is_member ? quoted_word(random, words) + ':' : "") + literal(random, words) + ',');
}

/// Mutates a JSON text in place, to at most `max_size` bytes.
inline void mutate_json(std::string& text, std::size_t max_size, Random& random,
                        std::span<const std::string_view> words) {
  if (below(random, 10) != 0) {
    const JsonSpans spans(text);
    if (spans.good()) mutate_spans(text, spans, random, words);
    if (spans.good() && text.size() <= max_size) return;
  }
  mutate_bytes(text, max_size);
}

/// LLVMFuzzerCustomMutator of a target whose input is one JSON text.
inline std::size_t mutate_json_input(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                     unsigned seed, std::span<const std::string_view> words) {
  Random random(seed);
  std::string text(reinterpret_cast<const char*>(data), size);
  if (below(random, 2) == 0) Tally::instance().take_accepted(random(), text);
  mutate_json(text, max_size, random, words);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}

}  // namespace deepinfer::fuzz
