// The longest sequences of ranks that fit a budget, and what a step takes on paper.
#pragma once

#include <optional>

#include "bench/ranks/ranks_run.h"

namespace streambp::bench {

/// What ranks reach within a budget.
struct LongestOnRanks {
  Cell cell;
  RanksRun run;
};

/// The cell with the longest sequence of which no rank needs more than `budget` bytes at its peak, to the
/// two-hundredth part of the length, and its run; nothing where kShortest tokens do not fit. On the meta
/// device. Throws what a pass throws.
std::optional<LongestOnRanks> longest_on_ranks(Communicator& communicator, const Bench& bench,
                                               const Cell& cell, const Sharing& sharing, int64_t budget);

/// What a rank and its links do in a second; 0: nobody said.
struct Rates {
  double operations = 0.0;  // of its matrix products
  double bytes = 0.0;       // that it sends

  bool are_given() const { return operations > 0.0 && bytes > 0.0; }
};

/// Seconds of a step: the pass's matrix products at the given rate, and what is sent in the pass and in the
/// step after it.
struct StepOnPaper {
  double products = 0.0;
  double sent_by_pass = 0.0;
  double sent_by_step = 0.0;
  double all = 0.0;  // their sum; with overlap the longer of products and what the pass sends, and the step's
};
StepOnPaper step_on_paper(const RanksRun& run, const Rates& rates);

}  // namespace streambp::bench
