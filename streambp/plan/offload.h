// How many layers' activations go to the host's memory.
#pragma once

#include "streambp/plan/longest.h"

namespace streambp::plan {

/// A configuration whose Settings::offload_layers is chosen, and what it takes.
struct OffloadFit {
  Settings settings;
  Prediction prediction;
};

/// What is asked of the choice.
enum class OffloadGoal {
  kFewest,    // the fewest layers with which the device's budget holds the pass: copies cost time
  kBalanced,  // those with which the larger share of the two budgets is the smallest
};

/// Whether the number of layers is left open: activations are kept, and `offload` says host without a number.
bool leaves_offload_open(const Settings& settings);

/// `step` under `settings`, with the number of layers chosen where it is left open: activations of layers
/// from the lowest on go first, inputs only after all of those. Without a budget of the host that has no
/// limit. Where no number is enough, everything goes. Throws as Predictor::predict does.
OffloadFit fit_offload(Predictor& predictor, const TrainingStep& step, const Settings& settings,
                       const Budget& budget, OffloadGoal goal);

}  // namespace streambp::plan
