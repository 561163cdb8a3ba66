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
  bool listed = true;  // reaches clearly further than what is listed and costs less, or is the best
};

/// The configurations of `space` for `step`, whatever its length, and what they reach within `budget`, by
/// rising cost, without those that another one beats in both. With `wanted` tokens of a sequence the first
/// that fits is the best, and the search ends there; of the others `at_shortest` is the shortest length tried
/// that does not. With 0 it is the last that is worth its cost: that goes further than the cheaper ones by
/// 1 % at least, and by more than it costs more. Throws as Predictor::predict does.
std::vector<Suggestion> suggest(Predictor& predictor, TrainingStep step, const SearchSpace& space,
                                const Budget& budget, int64_t wanted);

}  // namespace streambp::plan
