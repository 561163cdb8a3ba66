#include "verify/equality/measure_alone.h"

#include <algorithm>
#include <cmath>

#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

/// Of the largest gradient of a model, and of a loss.
constexpr double kCancelled = 1e-3;

}  // namespace

EvaluationErrors measure_alone(const Evaluation& value, const Evaluation& truth) {
  EvaluationErrors errors = measure(value, truth);
  if (std::abs(truth.loss) < kCancelled && truth.loss != 0.0)
    errors.loss *= std::abs(truth.loss) / kCancelled;
  double largest = 0.0;
  for (const auto& [name, gradient] : truth.gradients) largest = worse(largest, norm_of(gradient));
  for (ParameterError& of : errors.gradients) {
    const auto expected = truth.gradients.find(of.name);
    if (!of.problem.empty() || expected == truth.gradients.end()) continue;
    const double norm = norm_of(expected->second);
    if (!(norm < kCancelled * largest)) continue;
    of.error *= (norm > 0.0 ? norm : 1.0) / (kCancelled * largest);
  }
  std::stable_sort(
      errors.gradients.begin(), errors.gradients.end(),
      [](const ParameterError& a, const ParameterError& b) { return is_worse(a.error, b.error); });
  return errors;
}

}  // namespace streambp::verify
