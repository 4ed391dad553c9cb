#include "models/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "deepinfer/error.h"

namespace deepinfer::models {
namespace {

PCRE2_SPTR units(std::string_view text) noexcept {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct FreeContext {
  void operator()(pcre2_match_context* context) const noexcept {
    pcre2_match_context_free(context);
  }
};
using Limits = std::unique_ptr<pcre2_match_context, FreeContext>;

/// Patterns come from files, and some take time exponential in the length of the name. Honest ones
/// take far fewer steps than this.
const Limits& limits() {
  static const Limits shared = [] {
    constexpr std::uint32_t kMostSteps = 1'000'000;
    Limits made(pcre2_match_context_create(nullptr));
    if (made != nullptr) pcre2_set_match_limit(made.get(), kMostSteps);
    return made;
  }();
  return shared;
}

}  // namespace

void ModulePattern::Free::operator()(pcre2_real_code_8* code) const noexcept {
  pcre2_code_free(code);
}

ModulePattern::ModulePattern(std::string_view pattern, const std::string& where) : where_(where) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(units(pattern), pattern.size(), 0, &error, &offset, nullptr));
  if (code_ == nullptr) {
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: expected a regular expression, found an error at offset {}: {}",
                            where_, offset, message_of(error)));
  }
}

bool ModulePattern::starts(std::string_view name) const { return matches(name, PCRE2_ANCHORED); }

bool ModulePattern::matches(std::string_view name, unsigned options) const {
  struct FreeData {
    void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
  };
  const std::unique_ptr<pcre2_match_data, FreeData> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr || limits() == nullptr)
    throw Error(ErrorCode::kOutOfMemory, where_ + ": no memory to match");
  const int result =
      pcre2_match(code_.get(), units(name), name.size(), 0, options, data.get(), limits().get());
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw Error(ErrorCode::kBadInput,
                fmt::format("{}: the regular expression gave up: {}", where_, message_of(result)));
  }
  return true;
}

}  // namespace deepinfer::models
