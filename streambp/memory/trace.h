// A recording as a trace for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <ostream>

#include "streambp/memory/timeline.h"

namespace streambp {

/// Writes the Trace Event Format (JSON): spans as B and E events, another thread's as thread 2, live bytes as
/// counters (C), the total as `memory` and the scopes, stacked, as `memory by scope`, the peak and refused
/// allocations as instants (i). Spans are complete; counters are those of sampled_indices(recording, most).
/// Time is microseconds since the start, or, where nothing is timed, the number of the entry; `otherData`
/// says which, and holds `about`.
void write_trace(std::ostream& out, const Recording& recording, const RunDescription& about,
                 size_t most = 40000);

}  // namespace streambp
