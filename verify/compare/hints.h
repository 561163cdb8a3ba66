// What may be the matter with gradients that differ from the truth by a factor.
#pragma once

#include "streambp/model/batch.h"
#include "verify/compare/compare.h"
#include "verify/compare/truth.h"

namespace streambp::verify {

/// Where the gradients of sft are the truth but for a factor, adds to `comparison.hints` which other divisors
/// of the loss of `batch` would give it.
void add_factor_hints(const Batch& batch, const CompareOptions& options, Comparison& comparison);

/// A loss that somebody has computed next to the true one.
struct LossFinding {
  double given = 0.0;
  double error = 0.0;  // relative to the true loss; absolute where that is 0
  double limit = 0.0;  // what correct arithmetic of the dtype may reach
  std::vector<std::string> hints;

  bool within() const { return error <= limit; }
};

/// `given` against the true loss `truth` of `batch`, in gradients of `dtype`: 1e-10 for float64, 1e-5 for
/// float32, 2e-2 below that. Hints say which divisor of sft's sum gives it.
LossFinding judge_loss(double given, double truth, const Batch& batch, const CompareOptions& options,
                       at::ScalarType dtype);

/// Where names or shapes are not those of the parameters that are judged, adds what is known of them: an
/// adapter's gradients without --adapter, the weights' own with it, another adapter's, FSDP's flat ones.
void add_name_hints(const CompareOptions& options, Comparison& comparison);

/// What is to be seen of the gradients without a pass: numbers that are not finite, zeros, the weights
/// themselves, other shapes of as many entries, one narrow dtype among wider ones.
void add_value_hints(const Truth& truth, const CompareOptions& options, const Tensors& gradients,
                     Comparison& comparison);

/// Where errors in float64 are as small as those of float32, adds what is known of it.
void add_precision_hints(Comparison& comparison);

}  // namespace streambp::verify
