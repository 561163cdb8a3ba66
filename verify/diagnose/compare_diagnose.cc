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
/// What a pass in float32 leaves at most, of a mistake that explains the rest.
constexpr double kOwnRounding = 1e-5;

bool is_half(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf;
}

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

/// Whether gradients are of a wider dtype than the one that a comparison has taken them to be computed in.
bool are_wider(const Tensors& gradients, const Comparison& comparison) {
  return is_half(comparison.dtype) && !has_dtype(gradients, at::kBFloat16) &&
         !has_dtype(gradients, at::kHalf);
}

class DiagnosedComparison {
 public:
  DiagnosedComparison(Truth& truth, const CompareOptions& options, const Comparison& comparison,
                      const Tensors& gradients)
      : truth_(truth),
        options_(options),
        comparison_(comparison),
        gradients_(gradients),
        settings_(options.settings) {
    if (options.divisor) settings_["divisor"] = fmt::format("{}", *options.divisor);
  }

  Diagnosis run() {
    Diagnosis found = search();
    if (found.kind != Diagnosis::Kind::kRight || comparison_.verdict == Verdict::kExact) return found;
    found.kind = Diagnosis::Kind::kWithin;
    found.within = within();
    return found;
  }

 private:
  /// What leaves errors that are nobody's mistake, and what the verdict makes of them.
  std::string within() const {
    const std::string dtype = dtype_name(comparison_.dtype);
    if (comparison_.verdict != Verdict::kUndecided && comparison_.dtype == at::kDouble)
      return "what norms, rotation or softmax in float32 leave in a float64 model, and by float64's own "
             "limits they are " +
             verdict_name(comparison_.verdict);
    if (comparison_.verdict != Verdict::kUndecided)
      return fmt::format("other orders of summation leave in {}, and parameter by parameter they are {}",
                         dtype, verdict_name(comparison_.verdict));
    if (narrowest_dtype(gradients_) != comparison_.dtype)
      return fmt::format(
          "the noise of {0}, and undecided is whether these were to be computed in it: in {1} "
          "they are wrong (--compute-dtype {0} or {1} says which it is)",
          dtype, dtype_name(narrowest_dtype(gradients_)));
    return "rounding; the verdict is undecided all the same, and its notes say why";
  }

  Diagnosis search() {
    hold_values(truth_.model);
    if (truth_.teacher) hold_values(*truth_.teacher);
    if (are_wider(gradients_, comparison_)) {
      if (std::optional<Diagnosis> own = in_their_own_precision()) return std::move(*own);
    }
    DiagnoseOptions diagnosing;
    for (const ParameterFinding& finding : comparison_.findings) {
      if (finding.limit > 0.0) diagnosing.limits[finding.of.name] = finding.limit;
    }
    if (is_half(comparison_.dtype)) {
      const NoiseRuns runs(truth_, comparison_.dtype, options_.chunk);
      for (const int run : {0, 1}) diagnosing.noise.push_back(runs.gradients(run));
    }
    return diagnosed(diagnosing, right(), measured_noise(comparison_));
  }

  Model* teacher() const { return truth_.teacher ? &*truth_.teacher : nullptr; }

  Tensors right() const {
    Settings exact;
    exact.chunk = options_.chunk;
    return evaluate(truth_.model, truth_.batch, *truth_.objective, exact, teacher()).gradients;
  }

  Diagnosis diagnosed(DiagnoseOptions diagnosing, const Tensors& right, double noise) {
    const WrongSubject subject{truth_.model,     truth_.batch,  options_.objective, settings_,
                               truth_.input_ids, truth_.labels, teacher()};
    diagnosing.chunks = options_.diagnose_chunks;
    const Tensors named = named_as(right, gradients_, &truth_.model.config()).gradients;
    if (std::optional<Diagnosis> overflow = find_overflow(named, right)) return std::move(*overflow);
    return diagnose(subject, named, right, noise, diagnosing);
  }

  /// What is that far off may be the noise of a narrower dtype, or a mistake of a pass in the gradients' own:
  /// that comes first where it leaves nothing but their own rounding.
  std::optional<Diagnosis> in_their_own_precision() {
    const bool rounded = verify::are_numbers_of(comparison_.dtype, truth_.model);
    restore_weights(truth_);
    const Tensors exact = right();
    const double noise =
        precision_residual(NoiseRuns(truth_, at::kFloat, options_.chunk).gradients(0), exact);
    Diagnosis own = diagnosed({}, exact, noise);
    const Explanation& best = own.explanations.front();
    if (own.kind == Diagnosis::Kind::kExplained && best.name != "truth" &&
        best.fit.residual <= std::max(kOwnRounding, 2.0 * noise))
      return own;
    if (rounded && !verify::are_numbers_of(comparison_.dtype, truth_.model))
      round_weights(truth_, comparison_.dtype);
    return std::nullopt;
  }

  Truth& truth_;
  const CompareOptions& options_;
  const Comparison& comparison_;
  const Tensors& gradients_;
  std::map<std::string, std::string> settings_;
};

}  // namespace

Diagnosis diagnose_comparison(Truth& truth, const CompareOptions& options, const Comparison& comparison,
                              const Tensors& gradients) {
  const bool has_experts = truth.batch.router_indices.defined();
  if (has_experts || truth.batch.indexer_indices.defined())
    throw InputError(
        "--diagnose: {} has {}, whose tokens the passes with mistakes would move; leave one of the two out",
        options.tokens, has_experts ? "router_indices" : "indexer_indices");
  return DiagnosedComparison(truth, options, comparison, gradients).run();
}

}  // namespace streambp::verify
