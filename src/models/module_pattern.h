// Patterns over module names, such as "self_attn" or "model.layers.[0-9]+.mlp": PCRE2, bytes only.
//
// Not std::regex: it matches by recursion, so that a hostile pattern can end the process. PCRE2
// gives up after a bounded number of steps.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace deepinfer::models {

class ModulePattern {
 public:
  /// Throws Error(kBadInput) with `where` in front if the pattern does not compile.
  ModulePattern(std::string_view pattern, const std::string& where);

  /// Whether the pattern matches anywhere in `name` (Python's re.search).
  bool found_in(std::string_view name) const { return matches(name, 0); }

  /// Whether the pattern matches at the start of `name` (Python's re.match).
  bool starts(std::string_view name) const;

 private:
  bool matches(std::string_view name, unsigned options) const;

  struct Free {
    void operator()(pcre2_real_code_8* code) const noexcept;
  };
  std::string where_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
};

}  // namespace deepinfer::models
