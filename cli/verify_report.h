// What deepinfer verify prints.
#pragma once

#include "deepinfer/verify.h"

namespace deepinfer::cli {

/// For people: a table of formats, errors, remarks, what was compared, and the verdict.
void print(const VerifyReport& report, const VerifyOptions& options);

/// For programs: the same and all findings, as JSON.
void print_json(const VerifyReport& report, const VerifyOptions& options);

}  // namespace deepinfer::cli
