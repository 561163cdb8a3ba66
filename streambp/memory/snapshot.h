// A recording as a snapshot for PyTorch's memory viewer (pytorch.org/memory_viz).
#pragma once

#include <ostream>

#include "streambp/memory/recorder.h"

namespace streambp {

/// Writes the pickle that torch.cuda.memory._snapshot() would give, of device 0, with opcodes that the page's
/// own reader knows (no GLOBAL, no REDUCE: loading it runs nothing). An event's `category` is its scope,
/// which the page colours by; its frames are the scope and the spans around it, the innermost first.
///
/// The page takes colours from events alone: a block that was alive at the start is shown as allocated at
/// time 0, with a frame that says so. One segment holds all addresses, and the blocks alive at the end. The
/// last event has the category "unknown", without which the page's script stops. `time_us` is in microseconds
/// since the start, or, where nothing is timed, the number of the event.
void write_snapshot(std::ostream& out, const Recording& recording);

}  // namespace streambp
