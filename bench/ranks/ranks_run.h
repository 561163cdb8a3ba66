// A training step on one of several ranks: what it takes, and what it sends.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/ranks/ranks_overlap.h"
#include "bench/sweep/cells/cell.h"
#include "bench/sweep/cells/memory_failure.h"
#include "streambp/distributed/data_parallel.h"
#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/memory/recorder.h"

namespace streambp::bench {

/// What ranks divide a batch into.
enum class Division {
  kSequences,  // each rank draws sequences of its own: data parallelism
  kRows,       // all ranks draw the same sequences, and each has some rows of them (SequenceSplit)
};

/// What ranks divide, and how.
struct Sharing {
  ZeroStage stage = ZeroStage::kNone;
  bool overlaps = false;  // gradients are summed by a thread of their own while the pass goes on
  Division division = Division::kSequences;
  Exchange exchange = Exchange::kGather;  // where they divide rows
  int64_t link = 0;  // bytes a second of a simulated link (Communicator::simulate_link); 0: none

  bool operator==(const Sharing&) const = default;
};

/// What one cell's steps cost, over all ranks.
struct RanksRun {
  Sharing sharing;
  int64_t tokens = 0;          // of all ranks
  int64_t resident_bytes = 0;  // the most on a rank before a pass: weights, gradients, optimizer states
  int64_t peak_bytes = 0;      // the most on a rank, of pass and step
  std::map<std::string, int64_t> at_peak;  // of this rank
  std::vector<double> seconds;             // of pass and step, the slowest rank's
  double loss = 0.0;                       // of the last pass, before its step
  double operations = 0.0;                 // of a rank's pass (plan/flops/hardware_flops.h)
  std::optional<Communication> overlap;    // a rank's mean, of an untimed pass; nothing without overlap
  // The most that a rank has sent in one pass and in one step.
  std::map<Collective, Traffic> pass, step;
};

/// none, zero-1, zero-2, zero-3.
std::string stage_name(ZeroStage stage);

/// Runs `repeats` training steps, after an untimed one where there is a clock to read, of `cell` on this
/// rank. A batch of the cell's length and sequences is each rank's own, drawn from the seed, or all ranks'
/// one where they divide its rows. The setup's optimizer takes the steps; without one there are passes alone.
/// On meta one step is counted. `recorder`: null, or where a recorder of the last step is made, which the
/// caller stops. Throws what a pass throws.
RanksRun run_on_rank(Communicator& communicator, const Bench& bench, const Cell& cell, const Sharing& sharing,
                     int64_t repeats, std::optional<Recorder>* recorder = nullptr);

/// The more of each: of two ranks of one run.
RanksRun most_of(const RanksRun& one, const RanksRun& other);

/// What is known of a run's record before it is run (cell_configuration).
nlohmann::json ranks_configuration(const Bench& bench, const Cell& cell, const Sharing& sharing,
                                   int64_t ranks);

/// The bytes of what was sent, over all kinds.
int64_t sent_bytes(const std::map<Collective, Traffic>& sent);

/// The record of a run, without its environment (bench/records.md).
nlohmann::json ranks_record(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks);

/// The same of a cell in which a rank ran out of memory.
nlohmann::json ranks_record(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks,
                            const MemoryFailure& failure);

}  // namespace streambp::bench
