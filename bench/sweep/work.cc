#include "bench/sweep/work.h"

#include <algorithm>
#include <vector>

#include "streambp/backprop/host_weights.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/model/lora/peft_name.h"
#include "streambp/model/scored.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/plan/flops/hardware_flops.h"
#include "streambp/plan/flops/map_flops.h"
#include "streambp/plan/flops/model_flops.h"

namespace streambp::bench {
namespace {

constexpr double kWide = 4.0;  // bytes of a float32

double as_double(int64_t number) {
  return static_cast<double>(number);
}

/// How often a layer's attention and its other parts run forward.
struct Forwards {
  double attention = 0.0;
  double rest = 0.0;
};

Forwards forwards_of(const Model& model, const Objective& objective, const Settings& settings,
                     const std::vector<int64_t>& lengths, int64_t layer) {
  const MethodKind& kind = method_kind(settings.method);
  const auto layers = static_cast<int64_t>(model.layers().size());
  const int64_t first = std::max<int64_t>(model.lowest_trainable_layer(), 0);
  if (layer < first) return {1.0, 1.0};
  const bool joined = layer + 1 == layers && joins_head(model, objective, settings);
  const LayerRuns runs = kind.layer_runs(settings, lengths, model.config(), layer, joined);
  Forwards all{runs.attention, runs.mlp};
  if (kind.rebuild_runs == nullptr) return all;
  if (const auto rebuild = kind.rebuild_runs(settings, model.config(), layer, first)) {
    all.attention += rebuild->attention;
    all.rest += rebuild->mlp;
  }
  return all;
}

/// How often a pass has the weights of `layer` brought, where a provider has them.
double times_brought(const Settings& settings, int64_t layer, int64_t first, int64_t layers) {
  const bool all_at_once = settings.method == Method::kStandard || settings.method == Method::kChunkMajor;
  // The last layer's stay for its backward pass.
  if (all_at_once || layer < first || layer + 1 == layers) return 1.0;
  return keeps_input(layer + 1, first, layers, settings.every) ? 2.0 : 3.0;
}

/// Of weights in the host's memory, those that a fused optimizer changes also on their path there.
double bytes_of_weights(const Model& model, const Settings& settings) {
  if (dynamic_cast<const HostWeights*>(model.provider()) == nullptr) return 0.0;
  const int64_t first = std::max<int64_t>(model.lowest_trainable_layer(), 0);
  const auto layers = static_cast<int64_t>(model.layers().size());
  double bytes = 0.0;
  for (const auto& parameter : model.parameters()) {
    const std::optional<int64_t> layer = layer_of(parameter->name);
    if (!layer || is_peft_name(parameter->name)) continue;
    const double times = times_brought(settings, *layer, first, layers) + (parameter->deferred ? 1.0 : 0.0);
    bytes += times * as_double(static_cast<int64_t>(parameter->value.nbytes()));
  }
  return bytes;
}

int64_t key_width(const Config& config, int64_t layer) {
  return config.key_value_heads_of(layer) * config.head_dim_of(layer);
}

/// Bytes that putting together the parts of a chunk's attention moves, of one layer: `forward` runs and one
/// backward pass.
double bytes_of_parts(const Config& config, int64_t layer, const std::vector<int64_t>& lengths, int64_t chunk,
                      double element, double forward) {
  if (chunk == 0) return 0.0;
  const double queries = as_double(config.query_width(layer)), keys = as_double(key_width(config, layer));
  // A part is read, and the wide sum read and written.
  const double added = element + 2.0 * kWide;
  double bytes = 0.0;
  for (const int64_t length : lengths) {
    for (int64_t prefix = chunk; prefix < length; prefix += chunk) {
      const double rows = as_double(std::min(chunk, length - prefix));
      const double tiles = as_double(1 + prefix / device_tile(chunk));
      const double rectangles = as_double(1 + prefix / std::max(4 * kDeviceTile, chunk));
      bytes += (forward * rectangles + tiles) * rows * queries * added;
      bytes += as_double(prefix) * 2.0 * (2.0 * element * queries + added * keys);
    }
  }
  return bytes;
}

}  // namespace

Work work_of(const Model& model, const Batch& batch, const Objective& objective, const Settings& given,
             const Model* teacher) {
  const Config& config = model.config();
  const std::vector<int64_t> lengths = plan::sequence_lengths(batch.offsets);
  const double tokens = as_double(batch.size());
  const auto element = static_cast<double>(c10::elementSize(model.dtype()));
  const double hidden = as_double(config.hidden_size);
  Settings settings = given;
  settings.chunk = chunk_of(given, batch.size(), model.device());
  const MethodKind& kind = method_kind(settings.method);
  const int64_t attended = kind.chunks_mlp_only ? 0 : settings.chunk;
  const int64_t first = std::max<int64_t>(model.lowest_trainable_layer(), 0);
  Work work;
  work.host_bytes = bytes_of_weights(model, settings);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const double rotated = as_double(config.query_width(layer) + key_width(config, layer));
    const double product = 2.0 * as_double(config.query_width(layer)) *
                           plan::visible_pairs(lengths, config.windows[static_cast<size_t>(layer)]);
    const Forwards forwards = forwards_of(model, objective, settings, lengths, layer);
    const double width = plan::mlp_width(config, layer);
    work.attention_forward += forwards.attention * 2.0 * product;
    work.moved_bytes += forwards.rest * tokens * element * (10.0 * hidden + 2.0 * rotated + 3.0 * width);
    if (layer < first) continue;
    work.attention_backward += 5.0 * product;
    work.moved_bytes += tokens * element * (12.0 * hidden + 3.0 * rotated + 6.0 * width) +
                        bytes_of_parts(config, layer, lengths, attended, element, forwards.attention);
    if (kind.offloaded_width != nullptr)
      work.host_bytes +=
          2.0 * tokens * element * as_double(kind.offloaded_width(settings, config, layer, first));
  }
  if (objective.request().log_probabilities && model.has_head()) {
    const bool streamed = settings.streams_head();
    const double rows = streamed ? as_double(scored_indices(batch).size(0)) : tokens;
    work.moved_bytes += (streamed ? 3.0 : 7.0) * kWide * rows * as_double(config.vocab_size);
  }
  work.products = plan::hardware_flops(model, batch, objective, settings, teacher) - work.attention_forward -
                  work.attention_backward;
  return work;
}

nlohmann::json work_member(const Work& work) {
  return {{"products_flops", work.products},
          {"attention_forward_flops", work.attention_forward},
          {"attention_backward_flops", work.attention_backward},
          {"moved_bytes", work.moved_bytes},
          {"host_bytes", work.host_bytes}};
}

}  // namespace streambp::bench
