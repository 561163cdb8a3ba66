#include "verify/diagnose/compare_diagnose.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "verify/compare/names.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// The noise that was measured for the comparison, as a residual; 0 for float64.
double measured_noise(const Comparison& comparison) {
  if (comparison.dtype == at::kDouble) return 0.0;
  double squares = 0.0, count = 0.0;
  for (const ParameterFinding& finding : comparison.findings) {
    if (!std::isfinite(finding.factor) || !std::isfinite(finding.noise)) continue;  // the truth is zero
    squares += std::pow(std::min(finding.noise, 1.0), 2);
    count += 1.0;
  }
  return count > 0.0 ? std::sqrt(squares / count) : 0.0;
}

}  // namespace

Diagnosis diagnose_comparison(Truth& truth, const CompareOptions& options, const Comparison& comparison,
                              const Tensors& gradients) {
  std::map<std::string, std::string> settings = options.settings;
  if (options.divisor) settings["divisor"] = fmt::format("{}", *options.divisor);
  const WrongSubject subject{truth.model, truth.batch,     options.objective,
                             settings,    truth.input_ids, truth.labels};
  Settings exact;
  exact.chunk = options.chunk;
  const Tensors right =
      evaluate(truth.model, truth.batch, *truth.objective, exact, truth.teacher ? &*truth.teacher : nullptr)
          .gradients;
  DiagnoseOptions diagnosing;
  diagnosing.chunks = options.diagnose_chunks;
  return diagnose(subject, named_as(right, gradients).gradients, right, measured_noise(comparison),
                  diagnosing);
}

}  // namespace streambp::verify
