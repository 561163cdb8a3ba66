#include "streambp/plan/suggest.h"

#include <algorithm>
#include <limits>

#include "streambp/plan/flops/cost_model.h"
#include "streambp/plan/offload.h"

namespace streambp::plan {
namespace {

/// At one length for all, so that they can be compared.
constexpr int64_t kCostLength = 32768;

/// By rising cost of `step` at its length.
std::vector<Suggestion> candidates(const Predictor& predictor, const TrainingStep& step,
                                   const SearchSpace& space, const Budget& budget) {
  const Models& models = predictor.models();
  const CostModel costs(models, step, predictor.device());
  std::vector<Suggestion> all;
  for (const Settings& settings :
       list_configurations(space, predictor.device(), models.policy->config().num_hidden_layers,
                           costs.tokens(), budget.host > 0)) {
    Suggestion suggestion;
    suggestion.settings = settings;
    suggestion.cost = costs.relative(settings);
    all.push_back(suggestion);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.cost < b.cost; });
  return all;
}

/// The pass of one configuration at the step's length, or at the first of some shorter ones that does not
/// fit: a dry run takes as long as there are chunks, and what a short sequence needs a longer one does.
OffloadFit try_up_to(Predictor& predictor, TrainingStep step, const Settings& settings, const Budget& budget,
                     int& evaluations) {
  constexpr int64_t kFirst = 4096, kStride = 4;
  const int64_t wanted = step.seq_len;
  for (step.seq_len = std::min(wanted, kFirst);; step.seq_len = std::min(wanted, kStride * step.seq_len)) {
    OffloadFit tried = fit_offload(predictor, step, settings, budget, OffloadGoal::kFewest);
    ++evaluations;
    if (step.seq_len == wanted || !budget.holds(tried.prediction)) return tried;
  }
}

/// Tries `candidates` in turn at the step's length, and drops those behind the first that fits.
void try_at(Predictor& predictor, const TrainingStep& step, const Budget& budget,
            std::vector<Suggestion>& candidates) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    LongestFit& fit = candidates[i].fit;
    const OffloadFit tried = try_up_to(predictor, step, candidates[i].settings, budget, fit.evaluations);
    candidates[i].settings = fit.settings = tried.settings;
    candidates[i].listed = false;
    fit.at_shortest = tried.prediction;
    if (!budget.holds(fit.at_shortest)) continue;
    fit.at_longest = fit.at_shortest;
    fit.seq_len = step.seq_len;
    candidates[i].best = candidates[i].listed = true;
    candidates.resize(i + 1);
    return;
  }
}

/// Drops what costs more than another candidate and takes no less at the step's length.
void drop_dominated(Predictor& predictor, const TrainingStep& step, const Budget& budget,
                    std::vector<Suggestion>& candidates) {
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(candidates, [&](const Suggestion& candidate) {  // in the order of their costs
    const double share = budget.share(
        fit_offload(predictor, step, candidate.settings, budget, OffloadGoal::kBalanced).prediction);
    if (share >= least) return true;
    least = share;
    return false;
  });
}

/// Marks the best and those that are listed, of what is known to its end.
void mark_worthwhile(std::vector<Suggestion>& candidates) {
  constexpr double kFurther = 1.01;         // to count at all
  constexpr double kClearlyFurther = 1.05;  // to be listed
  Suggestion* best = nullptr;
  double listed = 0.0;
  for (Suggestion& candidate : candidates) {  // in the order of their costs
    candidate.listed = false;
    if (!candidate.fit.fits()) continue;
    const auto reach = static_cast<double>(candidate.fit.seq_len);
    const double least = best == nullptr ? 0.0 : std::max(kFurther, candidate.cost / best->cost);
    if (best != nullptr && !(reach >= least * static_cast<double>(best->fit.seq_len))) continue;
    best = &candidate;
    candidate.listed = reach >= kClearlyFurther * listed;
    if (candidate.listed) listed = reach;
  }
  if (best == nullptr) return;
  best->best = best->listed = true;
}

void find_all(Predictor& predictor, const TrainingStep& step, const Budget& budget,
              std::vector<Suggestion>& candidates) {
  drop_dominated(predictor, step, budget, candidates);
  for (Suggestion& candidate : candidates) {
    candidate.fit = longest(predictor, step, candidate.settings, budget, /*resolution=*/100);
    candidate.settings = candidate.fit.settings;
  }
  mark_worthwhile(candidates);
}

}  // namespace

std::vector<Suggestion> suggest(Predictor& predictor, TrainingStep step, const SearchSpace& space,
                                const Budget& budget, int64_t wanted) {
  step.seq_len = wanted > 0 ? wanted : kCostLength;
  std::vector<Suggestion> found = candidates(predictor, step, space, budget);
  if (wanted > 0) {
    try_at(predictor, step, budget, found);
  } else {
    find_all(predictor, step, budget, found);
  }
  return found;
}

}  // namespace streambp::plan
