// `--method auto`: which way of running a cell is the cheapest that fits a budget, and why.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/max_length.h"

namespace streambp::bench {

/// A way that was considered for a cell, dry-run at its length.
struct Considered {
  Settings settings;
  double cost = 0.0;                    // CostModel::relative
  std::optional<Prediction> predicted;  // absent: the dry run refused, and why_not says what
  bool fits = false;
  std::string why_not;  // empty: it was chosen
};

struct Choice {
  Budget budget;
  std::vector<Considered> considered;  // by rising cost; of equal ones the leaner first
  std::optional<size_t> chosen;        // its place among them; absent: nothing fits

  /// What takes the smallest share of the budget; null where every dry run refused.
  const Considered* leanest() const;
};

/// Dry-runs every way (bench/ways.h) of the objective, length and batch of `asked` and chooses the cheapest
/// in time, as the cost model has it, that fits `budget`. `bench` says for which device costs are estimated.
Choice choose(const Bench& bench, Predictor& predictor, const Cell& asked, const Budget& budget);

/// In a line: "streambp, chunk 1024, keep-attention: the cheapest of 14 ways that fit 80 GB (predicted 71.2
/// GB); standard needs 412 GB, checkpoint 98 GB", naming the methods that fit in no way; or that nothing
/// fits, what the leanest needs, and what to do.
std::string describe_choice(const Choice& choice);

/// The member `choice` of a record: asked, budget_bytes, host_budget_bytes (null: not limited),
/// predicted_peak_bytes and relative_cost of the chosen way (null where nothing fits), reason, and
/// considered, a list of {method, settings, chunk, predicted_peak_bytes, relative_cost, fits, why_not}.
nlohmann::json choice_member(const Choice& choice);

}  // namespace streambp::bench
