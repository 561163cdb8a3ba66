#include "verify/diagnose/compare_diagnose.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>

#include "verify/compare/names.h"
#include "verify/compare/noise.h"
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

/// Next to entries so much larger than any of the truth, sums of squares hold nothing else.
constexpr double kOverflown = 1e30;

/// Where gradients hold numbers that hide all others: that, in place of a search.
std::optional<Diagnosis> find_overflow(const Tensors& gradients, const Tensors& truth) {
  double largest = 0.0;
  for (const auto& [name, of_truth] : truth) largest = std::max(largest, of_truth.abs().max().item<double>());
  for (const auto& [name, gradient] : gradients) {
    const double most = gradient.to(at::kDouble).abs().max().item<double>();
    if (most <= kOverflown * largest) continue;
    Diagnosis diagnosis;
    diagnosis.kind = Diagnosis::Kind::kExplained;
    diagnosis.fitting = 1;
    Explanation overflow{
        "overflow",
        fmt::format("{} holds {}: a number has overflown; with it no other mistake can be named", name,
                    std::isfinite(most) ? fmt::format("{:.3g}, the truth at most {:.3g}", most, largest)
                                        : "numbers that are not finite"),
        {}};
    overflow.fit.residual = std::numeric_limits<double>::infinity();
    diagnosis.explanations.push_back(std::move(overflow));
    return diagnosis;
  }
  return std::nullopt;
}

}  // namespace

Diagnosis diagnose_comparison(Truth& truth, const CompareOptions& options, const Comparison& comparison,
                              const Tensors& gradients) {
  const bool has_experts = truth.batch.router_indices.defined();
  if (has_experts || truth.batch.indexer_indices.defined())
    throw InputError(
        "--diagnose: {} has {}, whose tokens the passes with mistakes would move; leave one of the two out",
        options.tokens, has_experts ? "router_indices" : "indexer_indices");
  std::map<std::string, std::string> settings = options.settings;
  if (options.divisor) settings["divisor"] = fmt::format("{}", *options.divisor);
  const WrongSubject subject{truth.model,
                             truth.batch,
                             options.objective,
                             settings,
                             truth.input_ids,
                             truth.labels,
                             truth.teacher ? &*truth.teacher : nullptr};
  Settings exact;
  exact.chunk = options.chunk;
  const Tensors right =
      evaluate(truth.model, truth.batch, *truth.objective, exact, truth.teacher ? &*truth.teacher : nullptr)
          .gradients;
  DiagnoseOptions diagnosing;
  diagnosing.chunks = options.diagnose_chunks;
  for (const ParameterFinding& finding : comparison.findings) {
    if (finding.limit > 0.0) diagnosing.limits[finding.of.name] = finding.limit;
  }
  if (comparison.dtype == at::kBFloat16 || comparison.dtype == at::kHalf) {
    const NoiseRuns runs(truth, comparison.dtype, options.chunk);
    for (const int run : {0, 1}) diagnosing.noise.push_back(runs.gradients(run));
  }
  const Tensors named = named_as(right, gradients).gradients;
  if (std::optional<Diagnosis> overflow = find_overflow(named, right)) return std::move(*overflow);
  return diagnose(subject, named, right, measured_noise(comparison), diagnosing);
}

}  // namespace streambp::verify
