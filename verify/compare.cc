#include "verify/compare.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

/// What a dtype can be expected to hold of a gradient that was summed in it.
double auto_tolerance(const Tensors& gradients) {
  double tolerance = 1e-10;
  for (const auto& [name, gradient] : gradients) {
    const at::ScalarType dtype = gradient.scalar_type();
    if (dtype == at::kFloat) tolerance = std::max(tolerance, 1e-4);
    if (dtype == at::kBFloat16 || dtype == at::kHalf) tolerance = std::max(tolerance, 5e-2);
  }
  return tolerance;
}

double product_of(const at::Tensor& a, const at::Tensor& b) {
  return at::dot(a.to(at::kDouble).flatten(), b.to(at::kDouble).flatten()).item<double>();
}

/// Names that wrappers put before a model's own.
std::string prefix_hint(const std::vector<std::string>& surplus, const Tensors& truth) {
  constexpr std::pair<const char*, const char*> kPrefixes[] = {{"module.", "DistributedDataParallel"},
                                                               {"_orig_mod.", "torch.compile"},
                                                               {"base_model.model.", "PEFT"},
                                                               {"_fsdp_wrapped_module.", "FSDP"},
                                                               {"grad.", "the golden cases"}};
  for (const auto& [prefix, origin] : kPrefixes) {
    const std::string text = prefix;
    const bool fits =
        !surplus.empty() && std::all_of(surplus.begin(), surplus.end(), [&](const std::string& name) {
          return name.starts_with(text) && truth.contains(name.substr(text.size()));
        });
    if (fits) return fmt::format("names begin with '{}', as {} puts it: strip that", prefix, origin);
  }
  return {};
}

/// Fits the best common factor; false if there is none (nothing to fit, or NaN).
bool fit_factor(Comparison& comparison, const Tensors& gradients, const Tensors& truth) {
  double numerator = 0.0;
  double denominator = 0.0;
  for (ParameterFinding& finding : comparison.findings) {
    finding.factor = finding.cosine = finding.residual = kNaN;
    if (!finding.of.problem.empty()) continue;
    const at::Tensor& g = gradients.at(finding.of.name);
    const at::Tensor& t = truth.at(finding.of.name);
    const double product = product_of(g, t);
    const double square = product_of(t, t);
    if (square > 0.0) {
      finding.factor = product / square;
      const double norms = norm_of(g) * norm_of(t);
      if (norms > 0.0) finding.cosine = product / norms;
    }
    numerator += product;
    denominator += square;
  }
  comparison.factor = denominator > 0.0 ? numerator / denominator : kNaN;
  if (!std::isfinite(comparison.factor) || comparison.factor == 0.0) return false;
  for (ParameterFinding& finding : comparison.findings) {
    if (!finding.of.problem.empty()) continue;
    const at::Tensor unscaled = gradients.at(finding.of.name).to(at::kDouble) / comparison.factor;
    finding.residual = relative_error(unscaled, truth.at(finding.of.name));
  }
  return true;
}

}  // namespace

std::string verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kExact:
      return "exact";
    case Verdict::kScaled:
      return "scaled";
    case Verdict::kWrong:
      return "wrong";
    case Verdict::kIncomplete:
      return "incomplete";
  }
  return {};
}

Comparison compare_gradients(Tensors gradients, const Tensors& truth, std::optional<double> tolerance) {
  const auto head = gradients.find(kHead);
  if (head != gradients.end() && !truth.contains(kHead) && gradients.contains(kEmbedding) &&
      bit_equal(head->second, gradients.at(kEmbedding))) {
    gradients.erase(head);
  }
  Comparison comparison;
  comparison.tolerance = tolerance.value_or(auto_tolerance(gradients));
  bool incomplete = false;
  for (const ParameterError& error : gradient_errors(gradients, truth)) {
    if (error.problem == "missing") comparison.missing.push_back(error.name);
    if (error.problem == "surplus") comparison.surplus.push_back(error.name);
    incomplete = incomplete || error.problem.starts_with("shape") || error.problem.starts_with("dtype");
    comparison.findings.push_back({error});
  }
  const std::string hint = prefix_hint(comparison.surplus, truth);
  if (!hint.empty()) comparison.hints.push_back(hint);
  incomplete = incomplete || !comparison.missing.empty() || !comparison.surplus.empty();

  const auto all_within = [&](const auto& error_of) {
    return std::all_of(
        comparison.findings.begin(), comparison.findings.end(),
        [&](const ParameterFinding& finding) { return error_of(finding) <= comparison.tolerance; });
  };
  const bool fitted = fit_factor(comparison, gradients, truth);
  if (incomplete) {
    comparison.verdict = Verdict::kIncomplete;
  } else if (all_within([](const ParameterFinding& finding) { return finding.of.error; })) {
    comparison.verdict = Verdict::kExact;
  } else if (fitted && all_within([](const ParameterFinding& finding) { return finding.residual; })) {
    comparison.verdict = Verdict::kScaled;
  }
  return comparison;
}

std::vector<std::string> explain_factor(double c, double divisor, const std::vector<Normaliser>& normalisers,
                                        double tolerance) {
  struct Guess {
    std::string text;
    double error;
  };
  std::vector<Guess> guesses;
  const auto offer = [&](double factor, std::string text) {
    const double error = relative_error(c, factor);
    if (error <= tolerance) guesses.push_back({std::move(text), error});
  };
  for (const auto& [name, value] : normalisers) {
    if (value > 0.0 && value != divisor)
      offer(divisor / value,
            fmt::format("the loss divided by {} = {:g} instead of {:g}", name, value, divisor));
  }
  for (int count = 2; count <= 64; ++count) {
    offer(count, fmt::format("{} steps or ranks summed instead of averaged", count));
    offer(1.0 / count, fmt::format("averaged over {} steps or ranks that are in the divisor already", count));
  }
  offer(-1.0, "the opposite sign");
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const Guess& a, const Guess& b) { return a.error < b.error; });
  std::vector<std::string> texts;
  for (size_t i = 0; i < std::min<size_t>(guesses.size(), 3); ++i) texts.push_back(guesses[i].text);
  return texts;
}

}  // namespace streambp
