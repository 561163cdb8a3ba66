// The files of --trace, --snapshot and --timeline.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/sweep_options.h"
#include "streambp/memory/recorder.h"

namespace streambp::bench {

/// Writes the files that are asked for; traces and timelines say which cell they are of, by its `record`.
/// Throws InputError that names a file which can't be written.
void write_recording(const SweepOptions& options, const Recording& recording, const nlohmann::json& record);

}  // namespace streambp::bench
