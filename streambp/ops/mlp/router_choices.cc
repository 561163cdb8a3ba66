#include "streambp/ops/mlp/router_choices.h"

#include "streambp/memory/meter.h"

namespace streambp {

RouterChoices::RouterChoices(int64_t layers, int64_t tokens, int64_t per_token, int64_t experts,
                             c10::Device device)
    : shape_{tokens, per_token},
      options_(at::TensorOptions().device(device).dtype(experts <= 256 ? at::kByte : at::kInt)),
      choices_(static_cast<size_t>(layers)),
      given_(static_cast<size_t>(layers)),
      open_rows_(static_cast<size_t>(layers)),
      known_(static_cast<size_t>(layers)) {}

void RouterChoices::give(int64_t layer, const at::Tensor& choices) {
  const auto index = static_cast<size_t>(layer);
  const MemoryScope scope("router choices");
  const at::Tensor open = choices.lt(0).all(1);
  if (open.any().item<bool>()) open_rows_[index] = open.to(options_.device());
  choices_[index] = choices.clamp_min(0).to(options_.dtype()).to(options_.device());
  given_[index] = true;
}

at::Tensor RouterChoices::with_given(int64_t layer, int64_t begin, const at::Tensor& chosen) const {
  const auto index = static_cast<size_t>(layer);
  if (!given_[index]) return chosen;
  const int64_t n = chosen.size(0);
  const at::Tensor open = open_rows_[index].narrow(0, begin, n).unsqueeze(1);
  return at::where(open, chosen, choices_[index].narrow(0, begin, n).to(at::kLong));
}

at::Tensor RouterChoices::find(int64_t layer, int64_t begin, int64_t n) const {
  const auto index = static_cast<size_t>(layer);
  const bool all_given = given_[index] && !open_rows_[index].defined();
  if (!all_given && !known_[index].contains({begin, n})) return {};
  return choices_[index].narrow(0, begin, n).to(at::kLong);
}

void RouterChoices::keep(int64_t layer, int64_t begin, const at::Tensor& choices) {
  const auto index = static_cast<size_t>(layer);
  if (!open_ || (given_[index] && !open_rows_[index].defined())) return;
  if (!choices_[index].defined()) {
    const MemoryScope scope("router choices");
    choices_[index] = at::empty(shape_, options_);
  }
  choices_[index].narrow(0, begin, choices.size(0)).copy_(choices);
  known_[index].emplace(begin, choices.size(0));
}

}  // namespace streambp
