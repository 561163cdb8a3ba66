#include "streambp/plan/models.h"

#include <algorithm>
#include <utility>

#include "streambp/backprop/host_weights.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/model/quantized/quantized_weights.h"

namespace streambp::plan {
namespace {

Model::Placement placement_of(const ModelSetup& setup, c10::Device device) {
  Model::Placement placement{setup.dtype, device, setup.gradient_dtype, {}};
  placement.head_dtype = setup.head_dtype;
  return placement;
}

/// The model of `config`, or that `name` names, with its layers' weights where `setup` has them.
Model open_either(const ModelSetup& setup, const std::optional<Config>& config, const std::string& name,
                  Model::Placement placement, uint64_t seed, const GivenPadToken& pad_token = {}) {
  std::shared_ptr<HostWeights> host;
  if (setup.weights_on_host) {
    host = std::make_shared<HostWeights>(placement.device);
    placement.filled = [host](Parameter& parameter) { host->take(parameter); };
  }
  Model model =
      config ? Model::random(*config, placement, seed) : open_model(name, placement, seed, pad_token);
  if (host == nullptr) return model;
  if (model.provider() != nullptr)
    throw InputError("{}: weights in 4 or 8 bits, expected whole numbers to keep in the host's memory", name);
  model.provide(std::move(host));
  return model;
}

Model open_frozen(const ModelSetup& setup, c10::Device device, const std::optional<Config>& config,
                  const std::string& name, uint64_t seed) {
  Model::Placement placement = placement_of(setup, device);
  placement.trainable = [](const std::string&) { return false; };
  return open_either(setup, config, name, placement, seed);
}

}  // namespace

at::ScalarType parse_wide_dtype(const std::string& what, const std::string& name, at::ScalarType dtype) {
  if (name == "same") return dtype;
  if (name == "float32" && dtype != at::kDouble) return at::kFloat;
  throw InputError("{} '{}': expected same or float32, no narrower than the model's {}", what, name,
                   dtype_name(dtype));
}

bool contains_any(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return name.find(pattern) != std::string::npos; });
}

Models open_models(const ModelSetup& setup, c10::Device device) {
  const bool adapted = setup.lora || setup.adapter;
  Models models;
  Model::Placement placement = placement_of(setup, device);
  placement.trainable = [&setup, adapted](const std::string& name) {
    return (!adapted || name == "value_head.weight") && !contains_any(name, setup.freeze);
  };
  placement.defers_gradients = setup.fused_optimizer.has_value();
  if (setup.quantization && setup.weights_on_host)
    throw InputError(
        "--quantize {}: its layers can't be in the host's memory or divided among ranks, expected neither "
        "--weights host nor --zero zero-3",
        quant_type_name(setup.quantization->type));
  std::shared_ptr<QuantizedWeights> quantized;
  if (setup.quantization)
    quantized = quantize_layers(setup.config ? *setup.config : open_config(setup.model), *setup.quantization,
                                placement);
  Model& policy = models.policy.emplace(
      open_either(setup, setup.config, setup.model, placement, setup.seed, setup.pad_token));
  if (quantized != nullptr) policy.provide(std::move(quantized));
  if (setup.adapter) policy.load_adapters(*setup.adapter);
  if (setup.lora) policy.attach_adapters(*setup.lora, setup.seed);
  if (setup.value_head && !policy.has_value_head()) {
    const at::Tensor weight =
        at::randn({1, policy.config().hidden_size}, at::detail::createCPUGenerator(setup.seed));
    policy.attach_value_head(weight.mul_(0.02).to(setup.dtype));
  }
  if (setup.fused_optimizer) {
    if (setup.fused_optimizer->master_weights && setup.weights_on_host)
      throw InputError(
          "--weights host with --master-weights: twice the weights' memory would lie on the device, expected "
          "resident weights");
    models.fused_optimizer = make_optimizer(*setup.fused_optimizer);
    for (const auto& parameter : policy.parameters()) {
      if (parameter->trainable()) models.fused_optimizer->prepare(*parameter);
    }
    policy.defer_gradients();
  }
  models.optimizer = setup.optimizer;
  models.optimizer_states = allocate_states(setup.optimizer, policy);
  models.trainer = setup.trainer;
  models.trainer_weights = wider_weights(setup.trainer, policy, setup.quantization);
  models.adapter_reference = parse_adapter_reference(setup.adapter_reference);
  models.says_adapter_reference = models.adapter_reference != AdapterReference::kUnsaid;
  if (models.adapter_reference == AdapterReference::kUnsaid && setup.lora)
    models.adapter_reference = AdapterReference::kBase;
  if (models.adapter_reference == AdapterReference::kAdapter) {
    const MemoryScope scope("reference");
    for (const auto& parameter : policy.parameters())
      if (parameter->trainable()) models.frozen_adapter.push_back(parameter->value.clone());
  }
  // Other seeds than the policy's: a random model that it is compared with is not the policy itself.
  if (!setup.teacher.empty())
    models.teacher = open_frozen(setup, device, setup.teacher_config, setup.teacher, setup.seed + 2);
  return models;
}

Model open_reference(const ModelSetup& setup, c10::Device device) {
  return open_frozen(setup, device, setup.reference_config, setup.reference, setup.seed + 1);
}

}  // namespace streambp::plan
