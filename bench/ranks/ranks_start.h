// Ranks as processes of this machine, which are started again for the rest after one has run out of memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/sweep/sweep_options.h"

namespace streambp::bench {

/// Runs the command line of `options` as `ranks` processes. A rank that runs out of memory ends all of them,
/// as the others wait for it: the record that it left is appended to --out, and they are started again for
/// the cells that are left. Returns an exit code, kExitOutOfMemory where a rank ran out and all else is good.
/// Throws InputError, before any rank starts, where another run has --out, where it holds records and nothing
/// is resumed, and where something that is no file has the name of the record that ranks leave.
int start_ranks(int64_t ranks, const SweepOptions& options);

/// Whether start_ranks has started this process: all ranks are then on this machine.
bool is_started_rank();

/// On a rank that start_ranks has started again: the index of the run's first record in --out. Nothing
/// elsewhere.
std::optional<size_t> first_record_of_run();

/// Leaves the record of a cell that ran out of memory to start_ranks; nothing happens on a rank that somebody
/// else has started.
void leave_record(const SweepOptions& options, const nlohmann::json& record);

}  // namespace streambp::bench
