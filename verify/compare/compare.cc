#include "verify/compare/compare.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "verify/compare/names.h"

namespace streambp::verify {
namespace {

constexpr double kExactLimit = 1e-10;  // of float64
constexpr double kParameterRule = 3.0;
constexpr double kOfFewNumbers = 6.0;
constexpr double kMiddleRule = 1.25;
/// A bias is so many times what noise does to a factor, and at least this; and this share of the error.
constexpr double kBiasRule = 6.0;
constexpr double kLeastBias = 0.05;
constexpr double kBiasShare = 0.5;
constexpr size_t kBiasRuns = 3;
/// A truth whose noise is this share of it is lost in it: its factor means nothing.
constexpr double kLost = 0.3;

/// The least distance from 1 at which a common factor is one, whatever the spread says.
double least_difference(at::ScalarType dtype) {
  if (dtype == at::kDouble) return kExactLimit;
  return dtype == at::kFloat ? 5e-7 : 4e-3;
}

double cosine_of(const ParameterFinding& finding, const at::Tensor& g, const at::Tensor& t) {
  const double norm = norm_of(g);
  return norm > 0.0 ? finding.factor * norm_of(t) / norm : kNaN;
}

/// The root mean square of a typical parameter's gradient; 0 where all are 0.
double typical_entry(const Tensors& truth) {
  std::vector<double> entries;
  for (const auto& [name, tensor] : truth) {
    const double norm = norm_of(tensor);
    if (norm > 0.0) entries.push_back(norm / std::sqrt(static_cast<double>(tensor.numel())));
  }
  return entries.empty() ? 0.0 : median_of(std::move(entries));
}

/// Floors and limits of the findings.
class Limits {
 public:
  Limits(const Judging& judging, at::ScalarType dtype, const Tensors& truth)
      : judging_(judging), dtype_(dtype), truth_(truth), typical_(typical_entry(truth)) {}

  void set(ParameterFinding& finding) const {
    const at::Tensor& t = truth_.at(finding.of.name);
    double measured = 0.0;
    for (const NoiseSample& sample : judging_.noise) {
      const auto found = sample.find(finding.of.name);
      if (found == sample.end()) continue;
      measured = worse(measured, found->second.error);
      finding.natural_bias = worse(finding.natural_bias, std::abs(found->second.factor - 1.0));
    }
    const double rounding = dtype_ == at::kDouble ? 0.0 : relative_error(t.to(dtype_), t);
    finding.noise = std::max(measured, rounding);
    if (judging_.tolerance) {
      finding.limit = *judging_.tolerance;
      return;
    }
    // Of a few numbers, a few samples say less about how large the next error may be.
    const double rule =
        kParameterRule + kOfFewNumbers / std::sqrt(static_cast<double>(std::max<int64_t>(t.numel(), 1)));
    finding.limit = std::max(rule * finding.noise, dtype_ == at::kDouble ? kExactLimit : 0.0);
    const double norm = norm_of(t);
    if (norm > 0.0 && !(measured > kLost)) return;
    const double rounding_errors =
        8.0 * unit_roundoff(dtype_) * typical_ * std::sqrt(static_cast<double>(t.numel()));
    finding.limit = std::max(finding.limit, norm > 0.0 ? rounding_errors / norm : rounding_errors);
  }

 private:
  const Judging& judging_;
  at::ScalarType dtype_;
  const Tensors& truth_;
  double typical_;
};

/// How far correct arithmetic spreads the factors, and how far it moves all of them: the worst of all
/// samples.
std::pair<double, double> natural_factor(const std::vector<NoiseSample>& noise) {
  double spread = 0.0;
  double bias = 0.0;
  for (const NoiseSample& sample : noise) {
    std::vector<double> factors;
    for (const auto& [name, deviation] : sample) {
      if (deviation.error < kLost) factors.push_back(deviation.factor);
    }
    const FactorFit fit = fit_factor(factors);
    if (!fit.found()) continue;
    spread = std::max(spread, fit.spread);
    bias = std::max(bias, std::abs(fit.factor - 1.0));
  }
  return {spread, bias};
}

/// Fits the common factor and takes it out of each finding.
void fit_findings(Comparison& comparison, const Tensors& gradients, const Tensors& truth,
                  const Judging& judging) {
  std::vector<double> factors;
  for (ParameterFinding& finding : comparison.findings) {
    finding.factor = finding.cosine = finding.residual = finding.judged = kNaN;
    if (!finding.of.problem.empty()) continue;
    const at::Tensor& g = gradients.at(finding.of.name);
    const at::Tensor& t = truth.at(finding.of.name);
    finding.factor = factor_of(g, t);
    finding.cosine = cosine_of(finding, g, t);
    if (finding.noise < kLost && !judging.unsettled.contains(finding.of.name))
      factors.push_back(finding.factor);
  }
  const auto [spread, bias] = natural_factor(judging.noise);
  comparison.fit = fit_factor(factors, spread, bias);
  const FactorFit& fit = comparison.fit;
  comparison.factor = fit.factor;
  if (!fit.found()) return;
  comparison.differs =
      std::abs(fit.factor - 1.0) >
      std::max({4.0 * fit.spread * std::abs(fit.factor), 4.0 * bias, least_difference(comparison.dtype)});
  for (ParameterFinding& finding : comparison.findings) {
    if (!finding.of.problem.empty()) continue;
    finding.residual =
        relative_error(gradients.at(finding.of.name).to(at::kDouble) / fit.factor, truth.at(finding.of.name));
  }
}

/// Errors within the noise that point along the truth.
void find_biases(Comparison& comparison, const Judging& judging) {
  if (comparison.dtype == at::kDouble || judging.tolerance || judging.noise.empty()) return;
  const double common = comparison.differs ? comparison.fit.factor : 1.0;
  for (ParameterFinding& finding : comparison.findings) {
    if (!finding.of.problem.empty() || !(finding.noise > 0.0) || !(finding.judged <= finding.limit) ||
        judging.unsettled.contains(finding.of.name))
      continue;
    const double bias = std::abs(finding.factor / common - 1.0);
    if (!(bias > std::max({kLeastBias, kBiasRule * finding.natural_bias, kBiasShare * finding.judged})))
      continue;
    comparison.bias_suspected = true;
    if (judging.noise.size() < kBiasRuns) continue;
    finding.biased = true;
    comparison.notes.push_back(
        fmt::format("{}: its error of {:.2g} is within the noise, but a bias: it lies along the truth, "
                    "{:.3g} times as long "
                    "as it should be, where noise moves that by {:.2g} at most",
                    finding.of.name, finding.judged, finding.factor / common, finding.natural_bias));
  }
}

/// Holds errors against limits: with the factor taken out, if it differs from 1 and at least half of the
/// gradients agree then.
void hold_against_limits(Comparison& comparison) {
  const auto judge = [&](bool without_factor) {
    for (ParameterFinding& finding : comparison.findings)
      finding.judged = without_factor ? finding.residual : finding.of.error;
  };
  judge(comparison.differs);
  const auto within = std::count_if(comparison.findings.begin(), comparison.findings.end(),
                                    [](const ParameterFinding& finding) { return finding.within(); });
  if (comparison.differs && 2 * static_cast<size_t>(within) < comparison.findings.size()) judge(false);
}

/// Whether the errors are, taken together, what the dtype's noise is.
bool is_noise_together(Comparison& comparison, const Judging& judging) {
  if (judging.tolerance || comparison.dtype == at::kDouble) return true;
  std::vector<double> ratios;
  for (const ParameterFinding& finding : comparison.findings) {
    if (finding.noise > 0.0 && finding.noise < kLost && !judging.unsettled.contains(finding.of.name))
      ratios.push_back(finding.ratio());
  }
  if (ratios.empty()) return true;
  comparison.middle_limit =
      std::min(kParameterRule, kMiddleRule + 2.0 / std::sqrt(static_cast<double>(ratios.size())));
  comparison.middle_ratio = median_of(std::move(ratios));
  return comparison.middle_ratio <= comparison.middle_limit;
}

Verdict verdict_of(Comparison& comparison, const Judging& judging) {
  bool all = true;
  bool settled = true;
  for (const ParameterFinding& finding : comparison.findings) {
    if (finding.within()) continue;
    all = false;
    settled = settled && judging.unsettled.contains(finding.of.name) && std::isfinite(finding.judged);
  }
  const bool together = is_noise_together(comparison, judging);
  if (!settled || !together) return Verdict::kWrong;
  if (comparison.differs) return Verdict::kScaled;
  return all ? Verdict::kExact : Verdict::kUndecided;
}

}  // namespace

std::string verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kExact:
      return "exact";
    case Verdict::kScaled:
      return "scaled";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kWrong:
      return "wrong";
    case Verdict::kIncomplete:
      return "incomplete";
  }
  return {};
}

Power power_of(const Comparison& comparison) {
  Power power;
  std::vector<double> limits;
  for (const ParameterFinding& finding : comparison.findings) {
    if (!std::isfinite(finding.factor)) continue;  // the truth is zero, or there is a problem
    limits.push_back(finding.limit);
    if (finding.limit <= power.worst) continue;
    power.worst = finding.limit;
    power.worst_parameter = finding.of.name;
  }
  if (!limits.empty()) power.middle = median_of(std::move(limits));
  return power;
}

NoiseSample noise_sample(const Tensors& gradients, const Tensors& truth) {
  NoiseSample sample;
  for (const auto& [name, t] : truth) {
    const at::Tensor& g = gradients.at(name);
    sample.emplace(name, Deviation{relative_error(g, t), factor_of(g, t)});
  }
  return sample;
}

at::ScalarType narrowest_dtype(const Tensors& gradients) {
  at::ScalarType narrowest = at::kDouble;
  for (const auto& [name, gradient] : gradients) {
    const at::ScalarType dtype = gradient.scalar_type();
    if (at::isFloatingType(dtype) && unit_roundoff(dtype) > unit_roundoff(narrowest)) narrowest = dtype;
  }
  return narrowest;
}

Comparison compare_gradients(const Tensors& gradients, const Tensors& truth, const Judging& judging) {
  NamedGradients named = named_as(truth, gradients, judging.config);
  fill_left_out(truth, named);
  if (judging.config != nullptr) drop_untrained(truth, *judging.config, named);
  Comparison comparison;
  comparison.dtype = judging.dtype.value_or(narrowest_dtype(gradients));
  comparison.notes = named.notes;
  bool complete = true;
  for (const ParameterError& error : gradient_errors(named.gradients, truth)) {
    if (error.problem == "missing") comparison.missing.push_back(error.name);
    if (error.problem == "surplus") comparison.surplus.push_back(error.name);
    complete = complete && !error.problem.starts_with("shape") && !error.problem.starts_with("dtype");
    comparison.findings.push_back({error});
  }
  complete = complete && comparison.missing.empty() && comparison.surplus.empty();

  const Limits limits(judging, comparison.dtype, truth);
  for (ParameterFinding& finding : comparison.findings) {
    if (truth.contains(finding.of.name)) limits.set(finding);
  }
  if (!comparison.findings.empty()) comparison.tolerance = comparison.findings.front().limit;
  for (const ParameterFinding& finding : comparison.findings) {
    if (comparison.dtype == at::kDouble && finding.limit > 0.0)  // of rounding alone it is wider
      comparison.tolerance = std::min(comparison.tolerance, finding.limit);
  }
  fit_findings(comparison, named.gradients, truth, judging);
  hold_against_limits(comparison);
  find_biases(comparison, judging);
  comparison.verdict = complete ? verdict_of(comparison, judging) : Verdict::kIncomplete;
  return comparison;
}

}  // namespace streambp::verify
