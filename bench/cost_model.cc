#include "bench/cost_model.h"

#include <algorithm>

#include "streambp/plan/hardware_flops.h"

namespace streambp::bench {
namespace {

constexpr double kThinRows = 20.0;
constexpr double kOperationsPerHostByte = 2000.0;
constexpr double kOperationsPerByteOfCpu = 20.0;
constexpr double kOperationsPerByteOfGpu = 80.0;
constexpr double kCacheBytes = 32e6;

double as_double(int64_t number) {
  return static_cast<double>(number);
}

double element_bytes(const Bench& bench) {
  return as_double(static_cast<int64_t>(c10::elementSize(bench.options.dtype)));
}

/// Width of what a token meets between an MLP's products.
double mlp_width(const Config& config, int64_t layer) {
  if (!config.is_sparse(layer)) return as_double(config.intermediate_size);
  return as_double(config.mixture.num_experts_per_tok * config.mixture.moe_intermediate_size);
}

}  // namespace

CostModel::CostModel(const Bench& bench, const Models& models, const Cell& cell)
    : bench_(bench), models_(models), batch_(cell_batch(bench, cell)) {
  const auto given = options_of(cell.objective, bench.options.objective_options);
  stand_in_for_reference(cell.objective, given, batch_);
  objective_ = make_objective(cell.objective, batch_, given);
}

double CostModel::relative(const Settings& settings) const {
  Settings standard;
  standard.method = Method::kStandard;
  return operations(settings) / operations(standard);
}

double CostModel::operations(const Settings& settings) const {
  const Model* const teacher = models_.teacher ? &*models_.teacher : nullptr;
  const double per_byte = bench_.device.is_cpu() ? kOperationsPerByteOfCpu : kOperationsPerByteOfGpu;
  const int64_t chunk = chunk_of(settings, batch_.size(), bench_.device);
  const double slower = chunk > 0 ? 1.0 + kThinRows / as_double(chunk) : 1.0;
  return slower * (plan::hardware_flops(*models_.policy, batch_, *objective_, settings, teacher) +
                   per_byte * moved_bytes(settings) + kOperationsPerHostByte * host_bytes(settings));
}

double CostModel::moved_bytes(const Settings& settings) const {
  double bytes = bench_.device.is_cpu() ? moved_by_layers(settings) : 0.0;
  if (objective_->request().log_probabilities && !settings.streams_head()) {
    const double logits =
        std::max(element_bytes(bench_), 4.0) * as_double(batch_.size()) * as_double(bench_.config.vocab_size);
    if (logits > kCacheBytes) bytes += 4.0 * logits;
  }
  return bytes;
}

double CostModel::moved_by_layers(const Settings& settings) const {
  const Config& config = bench_.config;
  const auto tokens = as_double(batch_.size());
  const MethodKind& kind = method_kind(settings.method);
  const int64_t chunk = chunk_of(settings, batch_.size(), bench_.device);
  const double rows_of_mlp = chunk > 0 ? as_double(chunk) : tokens;
  const double rows_of_hidden = kind.chunks_mlp_only ? tokens : rows_of_mlp;
  const double forwards = kind.recomputes ? 2.0 : 1.0;
  const auto hidden = as_double(config.hidden_size);
  double values = 0.0;  // of one token
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const double width = mlp_width(config, layer);
    const double row_bytes = element_bytes(bench_) * (6.0 * hidden + 3.0 * width);
    if (rows_of_hidden * row_bytes > kCacheBytes) values += (6.0 * forwards + 6.0) * hidden;
    if (rows_of_mlp * row_bytes > kCacheBytes) values += (3.0 * forwards + 5.0) * width;
  }
  return element_bytes(bench_) * tokens * values;
}

double CostModel::host_bytes(const Settings& settings) const {
  if (settings.offload != Offload::kHost) return 0.0;
  const Config& config = bench_.config;
  const int64_t layers = config.num_hidden_layers;
  const int64_t first = std::max<int64_t>(models_.policy->lowest_trainable_layer(), 0);
  // Every layer's input but the lowest one's, which is the embedding; those of Settings::every later.
  int64_t values = 0;
  for (int64_t layer = first; layer < layers; ++layer) {
    if (layer > 0) values += config.hidden_size;
    if (settings.keep_attention) values += config.num_attention_heads * config.head_dim;
  }
  return 2.0 * as_double(values) * as_double(batch_.size()) * element_bytes(bench_);
}

}  // namespace streambp::bench
