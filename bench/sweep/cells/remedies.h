// What to change in a run that does not fit its budget.
#pragma once

#include <string>

#include "bench/sweep/cells/cell.h"
#include "streambp/plan/longest.h"

namespace streambp::bench {

/// "what would fit: --method streambp --fuse-optimizer sgd, 25487 tokens; ...": the smallest sets of changes
/// (a fused optimizer, LoRA, fewer bits, a released reference, weights in the host's memory, streambp) with
/// which some length of the first objective and batch fits `budget`, and the length that each reaches. Where
/// none does, what the leanest needs. `default_reference`: the reference model was not asked for. Makes
/// models of its own: no other predictor may be alive.
std::string describe_remedies(const Bench& bench, bool default_reference, const plan::Budget& budget);

}  // namespace streambp::bench
