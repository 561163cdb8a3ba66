#include "streambp/model/quantized/quantized_weights.h"

#include <set>
#include <string>
#include <utility>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/layers/value_memory.h"

namespace streambp {

void QuantizedWeights::take(const Parameter& parameter, QuantizedTensor quantized) {
  if (parameter.trainable()) {
    throw InputError(
        "{}: its weights are {}, which can't be trained: expected adapters on it (--lora-rank or "
        "--adapter), or a model that is not quantised",
        parameter.name, quant_type_name(quantized.type));
  }
  const std::optional<int64_t> layer = layer_of(parameter.name);
  if (!layer) return dequantize_into(quantized, parameter.value);
  free_memory(parameter.value);
  layers_[*layer].weights.push_back({parameter.value, std::move(quantized)});
}

void QuantizedWeights::enter(int64_t layer, std::optional<int64_t>) {
  const std::lock_guard lock(mutex_);
  Layer& entered = layers_[layer];
  if (entered.runs++ > 0) return;
  const at::NoGradGuard no_grad;
  const MemoryScope scope("weights");
  try {
    for (const Weight& weight : entered.weights) {
      allocate_memory(weight.value);
      dequantize_into(weight.quantized, weight.value);
    }
  } catch (...) {
    entered.runs = 0;
    for (const Weight& weight : entered.weights) free_memory(weight.value);
    throw;
  }
}

void QuantizedWeights::leave(int64_t layer) noexcept {
  const std::lock_guard lock(mutex_);
  Layer& left = layers_[layer];
  if (--left.runs > 0) return;
  for (const Weight& weight : left.weights) free_memory(weight.value);
}

std::shared_ptr<QuantizedWeights> quantize_layers(const Config& config, const Quantization& quantization,
                                                  Model::Placement& placement) {
  if (config.has_shared_blocks())
    throw InputError(
        "--quantize: {} has blocks that several layers share, expected none (and --dtype bfloat16)",
        config.family);
  std::set<std::string> names;
  for (const ParameterShape& shape : parameter_shapes(config)) {
    if (is_quantizable(shape, quantization)) names.insert(shape.name);
  }
  auto weights = std::make_shared<QuantizedWeights>();
  placement.filled = [weights, names, quantization](Parameter& parameter) {
    if (!names.contains(parameter.name)) return;
    const MemoryScope scope("weights");
    weights->take(parameter, quantize(parameter.value, quantization));
  };
  return weights;
}

}  // namespace streambp
