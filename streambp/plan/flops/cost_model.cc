#include "streambp/plan/flops/cost_model.h"

#include <algorithm>

#include "streambp/plan/flops/hardware_flops.h"
#include "streambp/plan/flops/map_flops.h"

namespace streambp::plan {
namespace {

constexpr double kThinRows = 20.0;
constexpr double kOperationsPerHostByte = 2000.0;
constexpr double kOperationsPerByteOfCpu = 20.0;
constexpr double kOperationsPerByteOfGpu = 80.0;
constexpr double kCacheBytes = 32e6;

double as_double(int64_t number) {
  return static_cast<double>(number);
}

}  // namespace

CostModel::CostModel(const Models& models, const TrainingStep& step, c10::Device device)
    : models_(models), device_(device), batch_(make_batch(step, models.policy->config().vocab_size)) {
  fill_reference(step, batch_);
  objective_ = make_objective(step.objective, batch_, options_of(step.objective, step.options));
}

double CostModel::element_bytes() const {
  return as_double(static_cast<int64_t>(c10::elementSize(models_.policy->dtype())));
}

double CostModel::relative(const Settings& settings) const {
  Settings standard;
  standard.method = Method::kStandard;
  return operations(settings) / operations(standard);
}

double CostModel::operations(const Settings& settings) const {
  const Model* const teacher = models_.teacher ? &*models_.teacher : nullptr;
  const double per_byte = device_.is_cpu() ? kOperationsPerByteOfCpu : kOperationsPerByteOfGpu;
  const int64_t chunk = chunk_of(settings, batch_.size(), device_);
  const double slower = chunk > 0 ? 1.0 + kThinRows / as_double(chunk) : 1.0;
  return slower * (hardware_flops(*models_.policy, batch_, *objective_, settings, teacher) +
                   per_byte * moved_bytes(settings) + kOperationsPerHostByte * host_bytes(settings));
}

double CostModel::moved_bytes(const Settings& settings) const {
  double bytes = 2.0 * kept_bytes(settings) + (device_.is_cpu() ? moved_by_layers(settings) : 0.0);
  if (objective_->request().log_probabilities && !settings.streams_head()) {
    const double logits = std::max(element_bytes(), 4.0) * as_double(batch_.size()) *
                          as_double(models_.policy->config().vocab_size);
    if (logits > kCacheBytes) bytes += 4.0 * logits;
  }
  return bytes;
}

double CostModel::moved_by_layers(const Settings& settings) const {
  const Config& config = models_.policy->config();
  const auto tokens = as_double(batch_.size());
  const MethodKind& kind = method_kind(settings.method);
  const int64_t chunk = chunk_of(settings, batch_.size(), device_);
  const double rows_of_mlp = chunk > 0 ? as_double(chunk) : tokens;
  const double rows_of_hidden = kind.chunks_mlp_only ? tokens : rows_of_mlp;
  const double forwards = kind.recomputes ? 2.0 : 1.0;
  const auto hidden = as_double(config.hidden_size);
  double values = 0.0;  // of one token
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const double width = mlp_width(config, layer);
    const double row_bytes = element_bytes() * (6.0 * hidden + 3.0 * width);
    if (rows_of_hidden * row_bytes > kCacheBytes) values += (6.0 * forwards + 6.0) * hidden;
    if (rows_of_mlp * row_bytes > kCacheBytes) values += (3.0 * forwards + 5.0) * width;
  }
  return element_bytes() * tokens * values;
}

double CostModel::bytes_of_layers(const Settings& settings,
                                  const std::function<int64_t(int64_t layer, int64_t first)>& width) const {
  const int64_t first = std::max<int64_t>(models_.policy->lowest_trainable_layer(), 0);
  // A layer that runs once has nothing to keep.
  const int64_t end = models_.policy->config().num_hidden_layers -
                      (joins_head(*models_.policy, *objective_, settings) ? 1 : 0);
  int64_t values = 0;
  for (int64_t layer = first; layer < end; ++layer) values += width(layer, first);
  return as_double(values) * as_double(batch_.size()) * element_bytes();
}

double CostModel::kept_bytes(const Settings& settings) const {
  const auto width = method_kind(settings.method).kept_width;
  if (width == nullptr) return 0.0;
  return bytes_of_layers(
      settings, [&](int64_t layer, int64_t) { return width(settings, models_.policy->config(), layer); });
}

double CostModel::host_bytes(const Settings& settings) const {
  const auto width = method_kind(settings.method).offloaded_width;
  if (width == nullptr) return 0.0;
  return 2.0 * bytes_of_layers(settings, [&](int64_t layer, int64_t first) {
           return width(settings, models_.policy->config(), layer, first);
         });
}

}  // namespace streambp::plan
