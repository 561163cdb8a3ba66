// The cheapest configuration that fits a budget, and why.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "streambp/plan/configurations.h"
#include "streambp/plan/longest.h"

namespace streambp::plan {

/// A configuration that was considered, dry-run at the step's length.
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
  std::optional<size_t> chosen;        // index into `considered`; absent: nothing fits

  /// What takes the smallest share of the budget; null where every dry run refused.
  const Considered* leanest() const;
};

/// Dry-runs `step` in every configuration of `space` and chooses the cheapest in time, as the cost model
/// estimates it, that fits `budget`. Offloading is tried where the budget has bytes of the host.
Choice choose(Predictor& predictor, const TrainingStep& step, const SearchSpace& space, const Budget& budget);

/// The same with models made for this call. With a fused optimizer the methods that take none are left out.
Choice choose(const Workload& workload, const SearchSpace& space, const Budget& budget);

/// In a line: "streambp, chunk 1024, keep-attention: the cheapest of 14 configurations that fit 80 GB
/// (predicted 71.2 GB); standard needs 412 GB, checkpoint 98 GB", naming the methods of which none fits; or
/// that nothing fits, and what the leanest needs.
std::string describe(const Choice& choice);

}  // namespace streambp::plan
