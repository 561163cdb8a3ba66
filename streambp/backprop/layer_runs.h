// How often each method runs the parts of a layer: MethodKind::layer_runs. Inside the library only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "streambp/backprop/settings.h"
#include "streambp/model/config/config.h"

namespace streambp {

/// Everything once: activations are kept.
LayerRuns run_once(const Settings& settings, const std::vector<int64_t>& lengths, const Config& config,
                   int64_t layer, bool joined);

/// Everything twice forward, the down projection only once where the layer's output is not needed again.
LayerRuns run_again(const Settings& settings, const std::vector<int64_t>& lengths, const Config& config,
                    int64_t layer, bool joined);

/// run_again in chunks that need the keys and values of their prefix.
LayerRuns run_again_by_chunks(const Settings& settings, const std::vector<int64_t>& lengths,
                              const Config& config, int64_t layer, bool joined);

/// MethodKind::rebuild_runs under Settings::every.
std::optional<LayerRuns> rebuild_by_every(const Settings& settings, const Config& config, int64_t layer,
                                          int64_t first);

/// run_again with the chunk's output of every layer but the last needed by the layer above.
LayerRuns run_again_chunk_major(const Settings& settings, const std::vector<int64_t>& lengths,
                                const Config& config, int64_t layer, bool joined);

}  // namespace streambp
