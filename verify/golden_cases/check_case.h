// One golden case: every method, at several chunk sizes, against losses and gradients that other people's
// code gave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/error_measure.h"
#include "verify/golden_cases/golden_case.h"

namespace streambp::verify {

/// What --method takes in addition to the methods' names.
inline constexpr const char* kReferenceName = "reference";

struct GoldensOptions {
  std::vector<std::string> methods;  // of method_names(), and kReferenceName; empty: all
  std::vector<int64_t>
      chunks;            // of methods by chunks, 0 for auto; empty: 1, 7, 16, those near the case's lengths
  double limit = 1e-10;  // permitted relative error
  bool quick = false;    // one of those chunks with one setting; the next case has the next ones
};

/// A parameter (or the loss, the log-probabilities, the values) that was too far off.
struct GoldenFailure {
  std::string run;  // "streambp chunk 7, mean"
  ParameterError of;
};

struct GoldenResult {
  std::string name;
  std::string objective;
  std::string model;
  int64_t tokens = 0;
  int64_t checks = 0;
  double loss_error = 0.0;
  double log_probability_error = 0.0;
  double value_error = 0.0;
  ParameterError worst;  // gradient
  std::vector<GoldenFailure> failures;
  std::string unsupported;  // the reason

  std::string verdict() const {
    return !unsupported.empty() ? "unsupported" : failures.empty() ? "pass" : "FAIL";
  }
};

/// Runs the case. What this build does not support is a result, not an error. Throws InputError where a file
/// of the case is missing or malformed. `turn`: the number of the case, of a quick run.
GoldenResult check_golden_case(const GoldenCase& golden, const GoldensOptions& options, size_t turn = 0);

}  // namespace streambp::verify
