// PCRE2 behind Regex.
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "deepinfer/error.h"

namespace deepinfer::text {
namespace {

PCRE2_SPTR units(std::string_view text) noexcept {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int code) {
  constexpr std::size_t kLongest = 256;
  PCRE2_UCHAR buffer[kLongest] = {};
  pcre2_get_error_message(code, buffer, kLongest);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

void RegexScratch::Free::operator()(pcre2_real_match_data_8* data) const noexcept {
  pcre2_match_data_free(data);
}

// One pair of offsets: only the whole match is of interest, not the groups in it.
RegexScratch::RegexScratch() : data_(pcre2_match_data_create(1, nullptr)) {
  if (data_ == nullptr) throw Error(ErrorCode::kOutOfMemory, "regex: no memory for match data");
}

void Regex::Free::operator()(pcre2_real_code_8* code) const noexcept { pcre2_code_free(code); }

Regex::Regex(std::string_view pattern, unsigned options, const std::string& where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(units(pattern), pattern.size(), options, &error, &offset, nullptr));
  if (code_ == nullptr) {
    throw Error(ErrorCode::kBadInput, where +
                                          ": expected a regular expression, found an error at "
                                          "offset " +
                                          std::to_string(offset) + ": " + message_of(error));
  }
  // Fails where there is no JIT for this CPU or none may be used; matching then interprets.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

Regex Regex::from_pattern(std::string_view pattern, const std::string& where) {
  return Regex(translate_pattern(pattern, where), PCRE2_UTF | PCRE2_UCP, where);
}

Regex Regex::from_literal(std::string_view text, const std::string& where) {
  return Regex(text, PCRE2_UTF | PCRE2_LITERAL, where);
}

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t start,
                                        RegexScratch& scratch) const {
  pcre2_match_data* data = scratch.data_.get();
  // Without NO_UTF_CHECK each call would read the whole text again: quadratic over all matches.
  const auto match = [&](unsigned options) {
    return pcre2_match(code_.get(), units(text), text.size(), start, PCRE2_NO_UTF_CHECK | options,
                       data, nullptr);
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw Error(ErrorCode::kUnsupported,
                "pre-tokenizer: a regular expression gave up: " + message_of(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  return Match{offsets[0], offsets[1]};
}

std::size_t Regex::memory_bytes() const noexcept {
  std::size_t code_bytes = 0;
  std::size_t jit_bytes = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_SIZE, &code_bytes);
  pcre2_pattern_info(code_.get(), PCRE2_INFO_JITSIZE, &jit_bytes);
  return code_bytes + jit_bytes;
}

}  // namespace deepinfer::text
