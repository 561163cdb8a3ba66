// Which configurations reach a length, or the greatest one, at the least cost.
#pragma once

#include <vector>

#include "streambp/plan/configurations.h"
#include "streambp/plan/longest.h"

namespace streambp::plan {

/// A configuration, what it reaches and what it costs.
struct Suggestion {
  Settings settings;
  LongestFit fit;
  double cost = 0.0;  // CostModel::relative
  bool best = false;
};

/// The configurations of `space` for `step`, whatever its length, and what they reach within `budget`, by
/// rising cost, without those that another one beats in both. With `wanted` tokens of a sequence the first
/// that fits is the best, and the search ends there; with 0, the one that reaches furthest, or a cheaper one
/// that comes within 1 % of it. Throws as Predictor::predict does.
std::vector<Suggestion> suggest(Predictor& predictor, TrainingStep step, const SearchSpace& space,
                                const Budget& budget, int64_t wanted);

}  // namespace streambp::plan
