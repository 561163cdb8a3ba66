#include "streambp/optimizer/master_weights.h"

#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {
namespace {

std::string state_name(const std::string& parameter) {
  return parameter + ".master";
}

}  // namespace

Parameter& MasterWeights::master(const Parameter& parameter) {
  Parameter& master = masters_[parameter.name];
  if (!master.value.defined()) {
    const MemoryScope scope("master weights");
    master.name = parameter.name;
    master.value = parameter.value.to(at::kFloat);
  }
  return master;
}

void MasterWeights::prepare(const Parameter& parameter) {
  inner_->prepare(copies(parameter) ? master(parameter) : parameter);
}

void MasterWeights::step(Parameter& parameter) {
  if (!copies(parameter)) return inner_->step(parameter);
  Parameter& wide = master(parameter);
  wide.gradient = std::exchange(parameter.gradient, {});
  inner_->step(wide);
  wide.gradient.reset();
  parameter.value.copy_(wide.value);
}

std::map<std::string, at::Tensor> MasterWeights::states() const {
  std::map<std::string, at::Tensor> states = inner_->states();
  for (const auto& [name, parameter] : masters_) states[state_name(name)] = parameter.value;
  return states;
}

void MasterWeights::take_steps(const std::map<std::string, at::Tensor>& values) {
  std::map<std::string, at::Tensor> of_inner = values;
  for (const auto& [name, parameter] : masters_) of_inner.erase(state_name(name));
  inner_->restore(of_inner);
}

}  // namespace streambp
