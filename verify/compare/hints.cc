#include "verify/compare/hints.h"

#include <algorithm>
#include <cmath>

#include "streambp/objective/terms.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

std::vector<Normaliser> normalisers_of(const Batch& batch, double scored) {
  const auto rows = static_cast<double>(batch.padded_rows);
  const auto columns = static_cast<double>(batch.padded_columns);
  return {{"nothing (a sum)", 1.0},
          {"scored tokens", scored},
          {"tokens", static_cast<double>(batch.size())},
          {"rows", rows},
          {"columns", columns},
          {"rows x columns", rows * columns},
          {"rows x (columns - 1)", rows * (columns - 1.0)},
          {"scored tokens and the first of each row", scored + rows}};
}

}  // namespace

void add_factor_hints(const Batch& batch, const CompareOptions& options, Comparison& comparison) {
  if (!comparison.differs || options.objective != "sft") return;
  const auto scored = static_cast<double>(count(batch).scored);
  const FactorFit& fit = comparison.fit;
  const double close = std::max((fit.high - fit.low) / std::abs(fit.factor), 1e-9);
  for (const std::string& guess :
       explain_factor(comparison.factor, options.divisor.value_or(std::max(scored, 1.0)),
                      normalisers_of(batch, scored), close)) {
    comparison.hints.push_back("the factor fits " + guess);
  }
}

LossFinding judge_loss(double given, double truth, const Batch& batch, const CompareOptions& options,
                       at::ScalarType dtype) {
  LossFinding finding;
  finding.given = given;
  finding.error = relative_error(given, truth);
  finding.limit = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 1e-5 : 2e-2;
  if (finding.within() || options.objective != "sft" || truth == 0.0) return finding;
  const auto scored = static_cast<double>(count(batch).scored);
  for (const std::string& guess :
       explain_factor(given / truth, options.divisor.value_or(std::max(scored, 1.0)),
                      normalisers_of(batch, scored), finding.limit))
    finding.hints.push_back("--loss fits " + guess);
  return finding;
}

void add_precision_hints(Comparison& comparison) {
  constexpr double kOfFloat32 = 1e-5;
  if (comparison.verdict != Verdict::kWrong || comparison.dtype != at::kDouble) return;
  const double worst = comparison.findings.front().of.error;
  if (!(worst <= kOfFloat32)) return;
  comparison.hints.push_back(
      "errors of this size in float64 are those of float32 inside: Hugging Face's models compute softmax, "
      "norms and rotary "
      "tables in float32 whatever their dtype; --compute-dtype float32 judges them as such");
}

}  // namespace streambp::verify
