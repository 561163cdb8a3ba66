#include "streambp/ops/router_choices.h"

#include "streambp/memory/meter.h"

namespace streambp {

RouterChoices::RouterChoices(int64_t layers, int64_t tokens, int64_t per_token, int64_t experts,
                             c10::Device device)
    : shape_{tokens, per_token},
      options_(at::TensorOptions().device(device).dtype(experts <= 256 ? at::kByte : at::kInt)),
      choices_(static_cast<size_t>(layers)),
      known_(static_cast<size_t>(layers)) {}

at::Tensor RouterChoices::find(int64_t layer, int64_t begin, int64_t n) const {
  const auto index = static_cast<size_t>(layer);
  if (!known_[index].contains({begin, n})) return {};
  return choices_[index].narrow(0, begin, n).to(at::kLong);
}

void RouterChoices::keep(int64_t layer, int64_t begin, const at::Tensor& choices) {
  if (!open_) return;
  const auto index = static_cast<size_t>(layer);
  if (!choices_[index].defined()) {
    const MemoryScope scope("router choices");
    choices_[index] = at::empty(shape_, options_);
  }
  choices_[index].narrow(0, begin, choices.size(0)).copy_(choices);
  known_[index].emplace(begin, choices.size(0));
}

}  // namespace streambp
