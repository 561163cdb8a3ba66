#include "verify/compare/hints.h"

#include <algorithm>
#include <cmath>

#include "streambp/objective/terms.h"

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

}  // namespace streambp::verify
