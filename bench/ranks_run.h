// A data-parallel training step on one rank: what it takes, and what it sends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "streambp/distributed/data_parallel.h"

namespace streambp::bench {

/// What one cell's steps cost, over all ranks.
struct RanksRun {
  ZeroStage stage = ZeroStage::kNone;
  int64_t tokens = 0;          // of all ranks
  int64_t resident_bytes = 0;  // the most on a rank before a pass: weights, gradients, optimizer states
  int64_t peak_bytes = 0;      // the most on a rank, of pass and step
  std::map<std::string, int64_t> at_peak;  // of this rank
  std::vector<double> seconds;             // of pass and step, the slowest rank's
  double loss = 0.0;                       // of the last pass, before its step
  // The most that a rank has sent in one pass and in one step.
  std::map<Collective, Traffic> pass, step;
};

/// none, zero-1, zero-2, zero-3.
std::string stage_name(ZeroStage stage);

/// Runs `repeats` training steps, after an untimed one where there is a clock to read, of `cell` on this
/// rank. Each rank draws its own batch, of the cell's length and sequences, from the seed. The setup's
/// optimizer takes the steps; without one there are passes alone. On meta one step is counted. Throws what a
/// pass throws.
RanksRun run_on_rank(Communicator& communicator, const Bench& bench, const Cell& cell, ZeroStage stage,
                     int64_t repeats);

/// The record of a run, without its environment (bench/records.md).
nlohmann::json ranks_record(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks);

}  // namespace streambp::bench
