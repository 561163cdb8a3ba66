#include "verify/compare/judge.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/scored.h"
#include "verify/compare/noise.h"
#include "verify/compare/pick_ties.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Whether errors are what the noise of the dtype is, neither larger nor smaller, alike in all parameters.
/// What autocast to bfloat16 gives lies at 0.5 to 1.1 x the measured noise, nine tenths of the parameters
/// within 0.8 to 1.4 x the median (every family, 40 to 2,048 tokens); an error in the mathematics spares some
/// parameters. Where tokens near a tie between experts may go to either (`ties`) one run's noise says little
/// of another's, parameter by parameter: the median alone counts.
bool looks_like_noise(const Comparison& comparison, const std::optional<NearTies>& ties) {
  const std::set<std::string> unsettled = ties ? ties->unsettled : std::set<std::string>{};
  std::vector<double> ratios;
  for (const ParameterFinding& finding : comparison.findings) {
    if (finding.noise > 0.0 && !unsettled.contains(finding.of.name)) ratios.push_back(finding.ratio());
  }
  if (ratios.empty()) return false;
  std::sort(ratios.begin(), ratios.end());
  const auto last = static_cast<double>(ratios.size() - 1);
  const double median = median_of(ratios);
  if (median >= 0.4 && ties && ties->near > 0) return true;
  return median >= 0.4 && ratios[static_cast<size_t>(0.1 * last)] >= 0.6 * median &&
         ratios[static_cast<size_t>(0.9 * last)] <= 1.7 * median;
}

bool is_good(const Comparison& comparison) {
  return comparison.verdict == Verdict::kExact || comparison.verdict == Verdict::kScaled;
}

/// Whether more measurements of noise could not change the verdict, nor, of gradients to diagnose, which
/// parameters are called right.
bool is_clear(const Comparison& comparison, bool diagnose) {
  if (comparison.bias_suspected) return false;
  if (comparison.verdict == Verdict::kExact || comparison.verdict == Verdict::kIncomplete) return true;
  return comparison.verdict == Verdict::kWrong && !diagnose &&
         comparison.middle_ratio > 10.0 * comparison.middle_limit;
}

bool are_numbers_of(at::ScalarType dtype, const Tensors& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [&](const auto& entry) {
    const at::Tensor& gradient = entry.second;
    return at::isFloatingType(gradient.scalar_type()) &&
           at::equal(gradient.to(dtype).to(gradient.scalar_type()), gradient);
  });
}

/// What makes a truth one that nearly any code would reach; empty: nothing.
std::string why_dead(const Evaluation& evaluation, const Truth& truth) {
  if (std::all_of(evaluation.gradients.begin(), evaluation.gradients.end(),
                  [](const auto& entry) { return is_zero(entry.second); }))
    return "all gradients of the truth are zero";
  const at::Tensor& log_probabilities = evaluation.log_probabilities;
  if (!log_probabilities.defined()) return "";
  const at::Tensor of_targets = log_probabilities.index_select(0, scored_indices(truth.batch));
  const double uniform = -std::log(static_cast<double>(truth.model.config().vocab_size));
  const bool is_uniform =
      of_targets.numel() > 0 && (of_targets - uniform).abs().max().item<double>() <= 1e-12;
  return is_uniform ? "the model gives every token the same probability" : "";
}

/// How far gradients are off, as one number to get smaller: NaN and all above 1 count as 1.
double distance(const Comparison& comparison) {
  double squares = 0.0;
  for (const ParameterFinding& finding : comparison.findings)
    squares += finding.of.error < 1.0 ? finding.of.error * finding.of.error : 1.0;
  return std::sqrt(squares / std::max<double>(1.0, static_cast<double>(comparison.findings.size())));
}

class Judge {
 public:
  Judge(Truth& truth, const CompareOptions& options, const Tensors& gradients)
      : truth_(truth), options_(options), gradients_(gradients), as_stored_(evaluate()) {}

  /// Gradients that agree where every model's would show nothing.
  CompareReport run() {
    CompareReport result = run_any();
    Comparison& comparison = result.comparison;
    if (!is_good(comparison)) return result;
    const std::string dead = why_dead(as_stored_, truth_);
    if (dead.empty()) return result;
    comparison.verdict = Verdict::kUndecided;
    comparison.notes.push_back(fmt::format("{}: that gradients agree is no evidence", dead));
    return result;
  }

 private:
  CompareReport run_any() {
    const at::ScalarType dtype = options_.compute_dtype.value_or(narrowest_dtype(gradients_));
    if (options_.tolerance) {
      Judging judging;
      judging.config = &truth_.model.config();
      judging.tolerance = options_.tolerance;
      judging.dtype = dtype;
      CompareReport result = report(compare_gradients(gradients_, as_stored_.gradients, judging), 0);
      settle_tied_picks(result.comparison);
      return result;
    }
    CompareReport result = dtype == at::kDouble ? in_double() : in_low(dtype);
    settle_tied_picks(result.comparison);
    if (options_.compute_dtype || result.comparison.verdict != Verdict::kWrong) return result;
    return in_narrower(std::move(result), dtype);
  }

  Evaluation evaluate() {
    Settings settings;
    settings.chunk = options_.chunk;
    return verify::evaluate(truth_.model, truth_.batch, *truth_.objective, settings,
                            truth_.teacher ? &*truth_.teacher : nullptr);
  }

  CompareReport report(Comparison comparison, int runs) const {
    return {std::move(comparison), as_stored_.loss, runs, std::nullopt};
  }

  CompareReport in_double() {
    Judging judging;
    judging.config = &truth_.model.config();
    judging.dtype = at::kDouble;
    Comparison comparison = compare_gradients(gradients_, as_stored_.gradients, judging);
    if (comparison.verdict != Verdict::kWrong) return report(std::move(comparison), 0);
    // A parameter whose gradient is all cancellation has no 10 digits.
    Settings settings;
    settings.method = Method::kCheckpoint;
    judging.noise = {noise_sample(verify::evaluate(truth_.model, truth_.batch, *truth_.objective, settings,
                                                   truth_.teacher ? &*truth_.teacher : nullptr)
                                      .gradients,
                                  as_stored_.gradients)};
    return report(compare_gradients(gradients_, as_stored_.gradients, judging), 0);
  }

  /// Gives the truth its weights as numbers of `dtype`, float64 for those as stored.
  void put_weights(at::ScalarType dtype) {
    if (weights_ == dtype) return;
    if (weights_ != at::kDouble) restore_weights(truth_);
    if (dtype != at::kDouble) round_weights(truth_, dtype);
    weights_ = dtype;
  }

  CompareReport in_low(at::ScalarType dtype) {
    put_weights(at::kDouble);
    const bool rounded = !verify::are_numbers_of(dtype, truth_.model);
    Tensors exact = as_stored_.gradients;
    if (rounded) {
      put_weights(dtype);
      exact = evaluate().gradients;
    }
    bool stored = false;
    CompareReport result = report({}, 0);
    Judging judging;
    judging.config = &truth_.model.config();
    judging.dtype = dtype;
    result.ties = find_near_ties(truth_, dtype);
    judging.unsettled = result.ties->unsettled;
    NoiseRuns runs(truth_, dtype, options_.chunk);
    do {
      judging.noise.push_back(runs.next(exact));
      result.comparison = compare_gradients(gradients_, exact, judging);
      if (rounded) stored = prefer_stored(result.comparison, judging);
    } while (runs.done() < NoiseRuns::kRuns && !is_clear(result.comparison, options_.diagnose));
    result.noise_runs = runs.done();
    // In 16 bits ties are everywhere, and the noise that was measured has them.
    if (result.comparison.verdict == Verdict::kWrong && !stored && dtype == at::kFloat)
      look_for_other_picks(result, judging);
    if (stored) put_weights(at::kDouble);
    note_ties(result);
    return result;
  }

  WrongSubject subject_of_truth() {
    return {truth_.model,
            truth_.batch,
            options_.objective,
            objective_options(options_),
            truth_.input_ids,
            truth_.labels,
            truth_.teacher ? &*truth_.teacher : nullptr};
  }

  /// Wrong gradients of a model whose indexers choose among equal scores: they may be of another choice.
  void settle_tied_picks(Comparison& comparison) {
    if (comparison.verdict != Verdict::kWrong) return;
    std::map<int64_t, int64_t> tied;
    try {
      tied = tied_rows(subject_of_truth());
    } catch (const InputError&) {
      return;  // a batch or model that such passes don't take
    }
    if (tied.empty()) return;
    std::vector<std::string> which;
    for (const auto& [layer, rows] : tied) which.push_back(fmt::format("{} in layer {}", rows, layer));
    comparison.verdict = Verdict::kUndecided;
    comparison.notes.push_back(
        fmt::format("indexers choose among rows of the very same score, often 0, for {} of {} tokens, and "
                    "torch.topk chooses others of them than the truth does: whether these gradients are of "
                    "another choice is not known; record the choice as indexer_indices of --tokens",
                    fmt::join(which, ", "), truth_.batch.size()));
  }

  /// Wrong gradients of a model whose indexers pick: perhaps right where rows that are nearly tied see
  /// others. One pick after the other is taken over that brings the truth closer.
  void look_for_other_picks(CompareReport& result, const Judging& judging) {
    const WrongSubject subject = subject_of_truth();
    PickTies ties;
    std::vector<OtherPicks> taken;
    Comparison best = result.comparison;
    size_t tried = 0;
    try {
      Truth low = truth_.open_again(*judging.dtype);
      hold_values(low.model);
      hold_values(truth_.model);
      ties = find_pick_ties(subject, low.model, *judging.dtype);
      const auto try_out = [&](std::vector<OtherPicks> with) {
        ++tried;
        Comparison other = compare_gradients(gradients_, verify::with_picks(subject, with), judging);
        if (!is_found(other) && !(distance(other) < kCloser * distance(best))) return false;
        best = std::move(other);
        taken = std::move(with);
        return true;
      };
      for (const auto& together : ties.of_runs) {
        if (!is_found(best)) try_out(together);
      }
      for (bool closer = true; closer && !is_found(best);) {
        closer = false;
        for (const OtherPicks& each : ties.others) {
          if (is_found(best) || tried >= kMostPickPasses) break;
          const auto is_taken = [&](const OtherPicks& known) {
            return known.layer == each.layer && known.row == each.row;
          };
          if (std::any_of(taken.begin(), taken.end(), is_taken)) continue;
          std::vector<OtherPicks> with = taken;
          with.push_back(each);
          if (!try_out(std::move(with))) continue;
          closer = true;
        }
      }
    } catch (const InputError&) {
      return;  // a batch or model that such passes don't take
    }
    if (ties.others.empty()) return;
    const std::string name = dtype_name(*judging.dtype);
    const std::string near = fmt::format(
        "{} of {} tokens are nearer to a tie between two picks of an indexer than the noise of {} "
        "(layers {})",
        ties.rows, truth_.batch.size(), name, fmt::join(ties.layers, ", "));
    if (is_found(best)) {
      std::vector<std::string> which;
      for (const OtherPicks& each : taken)
        which.push_back(fmt::format("token {} in layer {}", each.row, each.layer));
      best.notes = result.comparison.notes;
      best.notes.push_back(fmt::format("{}: the gradients are those where {} see{} the other pick", near,
                                       fmt::join(which, " and "), which.size() == 1 ? "s" : ""));
      result.comparison = std::move(best);
    } else if (tried >= kMostPickPasses) {
      result.comparison.verdict = Verdict::kUndecided;
      result.comparison.notes.push_back(fmt::format(
          "{}, more than could be tried: whether these gradients are of other picks is not known", near));
    } else {
      result.comparison.notes.push_back(
          fmt::format("{}; with their other picks the gradients are wrong as well", near));
    }
  }

  /// Weights that were kept wider than the arithmetic: whether the comparison is with their truth.
  bool prefer_stored(Comparison& comparison, const Judging& judging) const {
    const std::string name = dtype_name(comparison.dtype);
    if (!is_good(comparison)) {
      Comparison stored = compare_gradients(gradients_, as_stored_.gradients, judging);
      if (is_good(stored)) {
        comparison = std::move(stored);
        comparison.notes.push_back(
            fmt::format("the truth is that of the weights as stored, which are not all numbers of {}", name));
        return true;
      }
    }
    comparison.notes.push_back(fmt::format("the truth is that of the weights rounded to {}", name));
    return false;
  }

  static void note_ties(CompareReport& result) {
    if (result.ties->near == 0) {
      if (result.ties->tokens == 0) result.ties.reset();
      return;
    }
    result.comparison.notes.push_back(fmt::format(
        "{} of {} tokens are nearer to a tie between two experts than the noise of {} (layers {}): in that "
        "dtype they may go to others than in float64",
        result.ties->near, result.ties->tokens, dtype_name(result.comparison.dtype),
        fmt::join(result.ties->layers, ", ")));
  }

  /// Wrong in `dtype`: perhaps they were computed in a narrower one. Whether they should have been is not for
  /// the numbers to say.
  CompareReport in_narrower(CompareReport result, at::ScalarType dtype) {
    if (dtype == at::kBFloat16 || dtype == at::kHalf) return result;
    const at::ScalarType weights = weights_;
    for (const at::ScalarType narrower : {at::kFloat, at::kHalf, at::kBFloat16}) {
      if (narrower == dtype || !are_numbers_of(narrower, gradients_)) continue;
      CompareReport again = in_low(narrower);
      if (again.comparison.verdict == Verdict::kWrong) continue;
      return as_computed_in(std::move(again), "every number is one of {0}: if they were computed in it");
    }
    put_weights(weights);
    if (dtype != at::kFloat) return result;
    std::optional<CompareReport> tried;
    try {
      tried = in_low(at::kBFloat16);
    } catch (const InputError&) {  // a model that has no 16 bits here
      put_weights(weights);
      return result;
    }
    CompareReport& half = *tried;
    const char* const reason =
        "all errors are within the noise of {0}: if products were taken in it (autocast, gradients kept in "
        "float32 next to {0} weights)";
    const bool fits = half.comparison.verdict != Verdict::kWrong;
    if (fits && looks_like_noise(half.comparison, half.ties)) return as_computed_in(std::move(half), reason);
    put_weights(weights);
    if (fits) result.comparison.hints.push_back(compute_dtype_hint(reason, at::kBFloat16));
    return result;
  }

  static std::string compute_dtype_hint(const char* reason, at::ScalarType dtype) {
    return fmt::format(fmt::runtime(std::string(reason) + ", --compute-dtype {0} judges by that"),
                       dtype_name(dtype));
  }

  static CompareReport as_computed_in(CompareReport report, const char* reason) {
    Comparison& comparison = report.comparison;
    if (comparison.verdict == Verdict::kExact) comparison.verdict = Verdict::kUndecided;
    comparison.hints.push_back(compute_dtype_hint(reason, comparison.dtype));
    return report;
  }

  /// The noise of runs that picked otherwise says nothing of one pick: what it gives has to be nearer than
  /// that.
  static constexpr double kRoundingOfPicked = 1e-4;
  static bool is_found(const Comparison& comparison) {
    return is_good(comparison) && distance(comparison) <= kRoundingOfPicked;
  }
  /// How much closer another pick has to bring the truth to be taken.
  static constexpr double kCloser = 0.97;

  Truth& truth_;
  const CompareOptions& options_;
  const Tensors& gradients_;
  Evaluation as_stored_;
  at::ScalarType weights_ = at::kDouble;  // what those of the truth are numbers of
};

}  // namespace

CompareReport judge(Truth& truth, const CompareOptions& options, const Tensors& gradients) {
  return Judge(truth, options, gradients).run();
}

}  // namespace streambp::verify
