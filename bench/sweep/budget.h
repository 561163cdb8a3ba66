// The memory that --method auto has to fit.
#pragma once

#include "bench/sweep/cells/cell.h"
#include "streambp/plan/cards.h"
#include "streambp/plan/longest.h"

namespace streambp::bench {

/// Of `bytes` that are free, the part that tensors may take: past it a run ends in an exception, and before
/// the kernel ends the process.
int64_t usable_part(int64_t bytes);

/// What --budget says.
struct GivenBudget {
  int64_t bytes = 0;  // of the device
  const plan::Card* card = nullptr;

  /// What tensors can have: of a card less than its memory, of a size all of it.
  int64_t usable() const { return card != nullptr ? card->usable() : bytes; }
};

/// A size ("80GB"), or a card by name, which the meta device then stands for where `device` is that. Throws
/// InputError for anything else.
GivenBudget parse_budget(const std::string& text, const std::string& device);

/// --budget, else --memory-limit, else what the device has free (on the CPU the limit that is set for it).
/// With CUDA the host's free memory is there for offloading. Throws InputError for the meta device, which has
/// none.
plan::Budget budget_of(const Bench& bench);

/// Whether the device's memory is known to a run that nobody gave a budget: a GPU's, or a limit that was set.
bool knows_budget(const Bench& bench);

}  // namespace streambp::bench
