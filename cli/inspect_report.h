// The two ways of printing an Inspection.
#pragma once

#include "inspection.h"

namespace deepinfer::cli {

struct ReportOptions {
  bool kinds = false;    ///< all kinds of weights, however many
  bool layers = false;   ///< one line for each layer
  bool tensors = false;  ///< every tensor and every problem
};

/// For people. Without options it fits a screen of 24 lines of 80 characters.
void print_report(const Checkpoint& checkpoint, const Inspection& found,
                  const ReportOptions& options);

/// One JSON object; every tensor in it only if options.tensors.
void print_json_report(const Checkpoint& checkpoint, const Inspection& found,
                       const ReportOptions& options);

}  // namespace deepinfer::cli
