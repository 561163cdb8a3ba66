#include "streambp/optimizer/adamw.h"

#include <cmath>
#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {

Moments Moments::zeros(const std::vector<int64_t>& shape, const at::TensorOptions& options) {
  const MemoryScope scope("optimizer");
  return {at::zeros(shape, options), at::zeros(shape, options), 0};
}

at::Tensor Moments::direction(at::Tensor gradient, const OptimizerSettings& settings) {
  ++steps;
  const double bias1 = 1.0 - std::pow(settings.beta1, static_cast<double>(steps));
  const double bias2 = 1.0 - std::pow(settings.beta2, static_cast<double>(steps));
  gradient = gradient.to(first.scalar_type());
  first.lerp_(gradient, 1.0 - settings.beta1);
  second.mul_(settings.beta2).addcmul_(gradient, gradient, 1.0 - settings.beta2);
  at::Tensor root = (second / bias2).sqrt_().add_(settings.epsilon);
  return at::div_out(gradient, first, root).div_(bias1);
}

void Moments::add_to(std::map<std::string, at::Tensor>& states, const std::string& name) const {
  states[name + ".first"] = first;
  states[name + ".second"] = second;
  states[name + ".steps"] = at::scalar_tensor(steps, at::kLong).view({1});
}

at::TensorOptions state_options(const Parameter& parameter, const OptimizerSettings& settings) {
  const auto dtype = parameter.value.scalar_type();
  const bool half = c10::elementSize(dtype) < c10::elementSize(at::kFloat) ||
                    (settings.master_weights && dtype == at::kFloat);
  return parameter.value.options().dtype(half ? settings.dtype : dtype);
}

std::map<std::string, at::Tensor> AdamW::states() const {
  std::map<std::string, at::Tensor> states;
  for (const auto& [name, moments] : moments_) moments.add_to(states, name);
  return states;
}

void AdamW::step(Parameter& parameter) {
  const MemoryScope scope("optimizer step");
  const at::Tensor direction = moments(parameter).direction(std::exchange(parameter.gradient, {}), settings_);
  parameter.value.mul_(1.0 - settings_.learning_rate * settings_.weight_decay)
      .add_(direction, -settings_.learning_rate);
}

void AdamW::take_steps(const std::map<std::string, at::Tensor>& values) {
  for (auto& [name, moments] : moments_) moments.steps = values.at(name + ".steps").item<int64_t>();
}

Moments& AdamW::moments(const Parameter& parameter) {
  Moments& moments = moments_[parameter.name];
  if (!moments.first.defined())
    moments = Moments::zeros(parameter.value.sizes().vec(), state_options(parameter, settings_));
  return moments;
}

}  // namespace streambp
