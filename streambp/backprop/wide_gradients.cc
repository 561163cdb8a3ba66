#include "streambp/backprop/wide_gradients.h"

#include <algorithm>

namespace streambp {

WideGradients::WideGradients(Model& model, const std::vector<Parameter*>& parameters) : model_(model) {
  const MemoryScope scope("gradients");
  for (Parameter* parameter : parameters) {
    if (!parameter->gradient.defined() || !is_half_precision(parameter->gradient)) continue;
    sums_.push_back({parameter, parameter->gradient});
    model.replace_gradient(*parameter, parameter->gradient.to(at::kFloat));
  }
}

void WideGradients::round() {
  for (Sum& sum : sums_) {
    sum.narrow.copy_(sum.parameter->gradient);
    model_.replace_gradient(*sum.parameter, std::move(sum.narrow));
  }
  sums_.clear();
}

namespace {

Parameter* head_weight(const Model& model) {
  return model.has_head() ? model.head().weight : nullptr;
}

std::vector<Parameter*> others_of_head(const Model& model) {
  std::vector<Parameter*> others = model.head_parameters();
  std::erase(others, head_weight(model));
  return others;
}

}  // namespace

WideHead::WideHead(Model& model) : others_(model, others_of_head(model)) {
  Parameter* const weight = head_weight(model);
  if (weight == nullptr || !weight->gradient.defined() || !is_half_precision(weight->gradient)) return;
  const MemoryScope scope("gradients");
  weight->remainder = at::zeros_like(weight->gradient);
  weight_ = weight;
}

void WideHead::round() {
  others_.round();
  if (weight_ != nullptr) weight_->remainder.reset();
}

}  // namespace streambp
