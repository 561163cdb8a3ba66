// Which method and settings reach a length, or the greatest one, at the least cost.
#pragma once

#include <vector>

#include "bench/max_length.h"

namespace streambp::bench {

/// One way of running the wanted back-propagation.
struct Suggestion {
  LongestFit fit;
  double cost = 0.0;  // CostModel::relative
  bool best = false;
};

/// The ways (bench/ways.h) of an objective and batch, and what they reach within `budget`, by rising cost,
/// without those that another one beats in both. With `wanted` tokens of a sequence the first that fits is
/// the best, and the search ends there; with 0, the one that reaches furthest, or a cheaper one that comes
/// within 1 % of it.
std::vector<Suggestion> suggest(const Bench& bench, Predictor& predictor, const std::string& objective,
                                int64_t batch, const Budget& budget, int64_t wanted);

}  // namespace streambp::bench
