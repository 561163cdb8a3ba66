// The files of --trace, --snapshot, --timeline and --dump-gradients.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/sweep/sweep_options.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/model.h"

namespace streambp::bench {

/// Writes the files that are asked for; traces and timelines say which cell they are of, by its `record`.
/// Throws InputError that names a file which can't be written.
void write_recording(const SweepOptions& options, const Recording& recording, const nlohmann::json& record);

/// Writes the gradients of the weights that are trained as a safetensors file. Throws likewise.
void write_gradients(const std::filesystem::path& file, const Model& model);

}  // namespace streambp::bench
