// From the options of a sweep to its cells, with every check that can be made before anything is run.
#pragma once

#include <vector>

#include "bench/sweep/cells/cell.h"
#include "bench/sweep/sweep_options.h"

namespace streambp::bench {

/// Opens what the options name: config, device, tokens. The meta device takes one repeat and no warm-up;
/// --tokens sets length and batch. Throws InputError for what is not there, a --freeze pattern that fits no
/// parameter, and a memory limit on a device that has none.
Bench open_bench(const SweepOptions& options);

/// Every combination once, cells of one length and batch next to each other. Throws InputError where
/// gradients are to be dumped and can't be: more than one cell, --resume, the meta device, a path that can't
/// be written.
std::vector<Cell> list_cells(const Bench& bench);

}  // namespace streambp::bench
