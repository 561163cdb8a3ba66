#include "streambp/backprop/host_weights.h"

#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/layers/value_memory.h"

namespace streambp {

HostWeights::HostWeights(c10::Device device) : copies_(std::make_shared<HostCopies>(device, "weights")) {}

void HostWeights::take(Parameter& parameter) {
  const std::optional<int64_t> layer = layer_of(parameter.name);
  if (!layer) return;
  const at::NoGradGuard no_grad;
  const MemoryScope scope("weights");
  const at::Tensor& value = parameter.value;
  Weight weight{value, StreamBuffer({value.numel()}, value.options(), copies_), std::nullopt};
  weight.host.store(0, value.view({-1}));
  copies_->settle();
  free_memory(value);
  layers_[*layer].push_back(std::move(weight));
}

void HostWeights::begin(int64_t layer) {
  const at::NoGradGuard no_grad;
  for (const Weight& weight : layers_[layer]) weight.host.expect(0, weight.value.numel());
}

void HostWeights::bring(int64_t layer) {
  const at::NoGradGuard no_grad;
  for (Weight& weight : layers_[layer]) {
    move_memory(weight.host.rows(0, weight.value.numel()), weight.value);
    weight.version = weight.value._version();
  }
}

void HostWeights::remove(int64_t layer) noexcept {
  const at::NoGradGuard no_grad;
  for (Weight& weight : layers_[layer]) {
    weight.host.forget_expected();
    const auto version = std::exchange(weight.version, std::nullopt);
    if (version && weight.value._version() != *version) weight.host.store(0, weight.value.view({-1}));
  }
  copies_->settle();
  for (const Weight& weight : layers_[layer]) free_memory(weight.value);
}

}  // namespace streambp
