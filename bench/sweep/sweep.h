// streambp-bench sweep: methods x lengths x batches x chunks, measured next to each other.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/sweep/cells/cell.h"
#include "bench/sweep/sweep_options.h"

namespace streambp::bench {

/// What is known with --repeats auto: half the width of an interval relative to its median.
inline constexpr double kKnownTime = 0.02;
/// Fewest rounds that an interval of 95 % needs (median_interval), and the most that are run.
inline constexpr int64_t kFewestRounds = 6, kMostRounds = 40;

/// Runs what is asked for and writes records, and the table (or, with `json`, the records) on stdout.
///
/// Cells of one length and batch take turns, repeat by repeat, so that a machine that slows down slows all of
/// them. With `repeats` 0 there are rounds until the ratio of every cell's time to that of checkpoint (else
/// standard) of its objective is known to kKnownTime, or kMostRounds of them; the record's `relative_time`
/// has its interval. Where neither is in the sweep, each median is to be known as well. A cell's record is on
/// disk as soon as its last repeat is done. A cell that runs out of memory or fails becomes a record with
/// status `oom` or `error` and the sweep goes on; lengths at or beyond one that ran out are not tried again
/// in the same configuration.
///
/// With `picks_method`, a configuration is chosen for each objective, length and batch (plan::choose) before
/// anything is run; a line on stderr says why, and so does the record. The budget is `budget`, else
/// `memory_limit`, else what the device has free.
///
/// Returns exit_code_of (bench/records/report.h) the records. Throws InputError, before anything is run, for
/// options that can't be honoured.
int run_sweep(const SweepOptions& options);

/// The measuring part of it: those of `cells` that the folder's records do not have yet are run. The record
/// of each cell, in their order. Throws InputError where there are records and the options do not say resume.
std::vector<nlohmann::json> measure_cells(const Bench& bench, const std::vector<Cell>& cells);

}  // namespace streambp::bench
