#include "bench/models.h"

#include "bench/sweep_cells.h"
#include "streambp/model/open_model.h"

namespace streambp::bench {
namespace {

/// Another seed than the policy's: a random model that it is compared with is not the policy itself.
Model open_frozen(const Bench& bench, const std::string& name, uint64_t seed) {
  const SweepOptions& options = bench.options;
  Model::Placement placement{options.dtype, bench.device, options.gradient_dtype, {}};
  placement.trainable = [](const std::string&) { return false; };
  return open_model(name, placement, seed);
}

}  // namespace

Models open_models(const Bench& bench) {
  const SweepOptions& options = bench.options;
  const bool adapted = options.lora || options.adapter;
  Models models;
  Model::Placement placement{options.dtype, bench.device, options.gradient_dtype, {}};
  placement.trainable = [&options, adapted](const std::string& name) {
    return (!adapted || name == "value_head.weight") && !contains_any(name, options.freeze);
  };
  Model& policy = models.policy.emplace(open_model(options.model, placement, options.seed));
  if (options.adapter) policy.load_adapters(*options.adapter);
  if (options.lora) policy.attach_adapters(*options.lora, options.seed);
  if (bench.needs_value_head && !policy.has_value_head()) {
    const at::Tensor weight =
        at::randn({1, bench.config.hidden_size}, at::detail::createCPUGenerator(options.seed));
    policy.attach_value_head(weight.mul_(0.02).to(options.dtype));
  }
  if (options.fused_optimizer) {
    models.fused_optimizer = make_optimizer(*options.fused_optimizer);
    for (const auto& parameter : policy.parameters()) {
      if (parameter->trainable()) models.fused_optimizer->prepare(*parameter);
    }
    policy.defer_gradients();
  }
  models.optimizer_states = allocate_states(options.optimizer, policy);
  if (!options.teacher.empty()) models.teacher = open_frozen(bench, options.teacher, options.seed + 2);
  return models;
}

Model open_reference(const Bench& bench) {
  return open_frozen(bench, bench.options.reference, bench.options.seed + 1);
}

}  // namespace streambp::bench
