// What a comparison prints.
#pragma once

#include <optional>
#include <string>

#include "verify/compare/compare.h"
#include "verify/compare/hints.h"
#include "verify/compare/noise.h"

namespace streambp::verify {

/// All that is known at the end of a comparison.
struct CompareReport {
  Comparison comparison;
  double loss = 0.0;                   // of the truth
  int noise_runs = 0;                  // that the floors were measured in
  std::optional<NearTies> ties;        // of a mixture in a low precision
  int64_t tokens = 0, scored = 0;      // of the batch
  std::optional<double> divisor = {};  // of sft's sum; others have normalisers of their own
  std::optional<LossFinding> given_loss = {};
};

/// Verdict, factor, notes, hints and the worst parameters, for people, on stdout.
void print_report(const CompareReport& report);

/// One JSON object, all of that and the files' names.
std::string json_line(const CompareOptions& options, const CompareReport& report);

}  // namespace streambp::verify
