#include "bench/suggest.h"

#include <algorithm>
#include <limits>

#include "bench/cost_model.h"
#include "bench/ways.h"

namespace streambp::bench {
namespace {

/// At one length for all, so that they can be compared.
constexpr int64_t kCostLength = 32768;

std::vector<Suggestion> candidates(const Bench& bench, const Predictor& predictor,
                                   const std::string& objective, int64_t batch, const Budget& budget,
                                   int64_t wanted) {
  const int64_t seq_len = wanted > 0 ? wanted : kCostLength;
  const CostModel costs(bench, predictor.models(), {objective, {}, seq_len, batch});
  std::vector<Suggestion> all;
  for (const Settings& settings : list_ways(bench.options, bench.device, bench.config.num_hidden_layers,
                                            costs.tokens(), budget.host > 0)) {
    Suggestion suggestion;
    suggestion.fit.cell = {objective, settings, seq_len, batch};
    suggestion.cost = costs.relative(settings);
    all.push_back(suggestion);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Suggestion& a, const Suggestion& b) { return a.cost < b.cost; });
  return all;
}

/// Tries `candidates` in turn at the wanted length, and drops those behind the first that fits.
void try_at(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    LongestFit& fit = candidates[i].fit;
    fit.at_shortest = predictor.predict(fit.cell);
    fit.evaluations = 1;
    if (!budget.holds(fit.at_shortest)) continue;
    fit.at_longest = fit.at_shortest;
    candidates[i].best = true;
    candidates.resize(i + 1);
    return;
  }
}

/// Drops what costs more than another candidate and takes no less at the length where all are compared.
void drop_dominated(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(candidates, [&](Suggestion& candidate) {  // in the order of their costs
    candidate.fit.cell.seq_len = kCostLength;
    const double share = budget.share(predictor.predict(candidate.fit.cell));
    if (share >= least) return true;
    least = share;
    return false;
  });
}

void find_all(Predictor& predictor, const Budget& budget, std::vector<Suggestion>& candidates) {
  constexpr double kSame = 0.99;
  drop_dominated(predictor, budget, candidates);
  int64_t furthest = 0;
  for (Suggestion& candidate : candidates) {
    candidate.fit = find_longest(predictor, candidate.fit.cell, budget, /*resolution=*/100);
    furthest = std::max(furthest, candidate.fit.cell.seq_len);
  }
  const auto best = std::find_if(candidates.begin(), candidates.end(), [&](const Suggestion& candidate) {
    return candidate.fit.fits() &&
           static_cast<double>(candidate.fit.cell.seq_len) >= kSame * static_cast<double>(furthest);
  });
  if (best != candidates.end()) best->best = true;
}

}  // namespace

std::vector<Suggestion> suggest(const Bench& bench, Predictor& predictor, const std::string& objective,
                                int64_t batch, const Budget& budget, int64_t wanted) {
  std::vector<Suggestion> group = candidates(bench, predictor, objective, batch, budget, wanted);
  if (wanted > 0) {
    try_at(predictor, budget, group);
  } else {
    find_all(predictor, budget, group);
  }
  return group;
}

}  // namespace streambp::bench
