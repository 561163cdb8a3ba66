// Which gradients of a model are there when. See model.h.
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/model.h"

namespace streambp {

void Model::defer_gradients(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    parameter->deferred = true;
    parameter->gradient.reset();
  }
  renew_parts();
}

void Model::defer_gradients() {
  std::vector<Parameter*> all;
  for (const auto& parameter : parameters_) all.push_back(parameter.get());
  defer_gradients(all);
}

void Model::allocate_gradients(const std::vector<Parameter*>& parameters) {
  const MemoryScope scope("gradients");
  for (Parameter* parameter : parameters) {
    if (!std::exchange(parameter->deferred, false)) continue;
    parameter->gradient =
        at::zeros(parameter->value.sizes(), parameter->value.options().dtype(placement_.gradient_dtype));
  }
  renew_parts();
}

void Model::renew_parts() {
  for (const Part& part : parts_) {
    Parameter& parameter = *part.parameter;
    parameter.deferred = part.whole->deferred;
    parameter.gradient = part.whole->gradient.defined()
                             ? part.whole->gradient.narrow(0, part.first_row, parameter.value.size(0))
                             : at::Tensor();
  }
}

std::vector<Parameter*> Model::layer_parameters(int64_t layer) const {
  const std::string place = fmt::format("model.layers.{}.", layer);
  const std::string adapted = "base_model.model." + place;
  std::vector<Parameter*> found;
  for (const auto& parameter : parameters_) {
    const bool here = parameter->name.starts_with(place) || parameter->name.starts_with(adapted);
    if (here && parameter->trainable()) found.push_back(parameter.get());
  }
  return found;
}

std::vector<Parameter*> Model::head_parameters() const {
  std::vector<Parameter*> found{norm_.weight};
  if (head_ != nullptr) found.push_back(head_->weight);
  if (value_head_ != nullptr) found.push_back(value_head_->weight);
  std::erase_if(found, [](const Parameter* parameter) { return !parameter->trainable(); });
  return found;
}

std::vector<Parameter*> Model::embedding_parameters() const {
  return embedding_->trainable() ? std::vector<Parameter*>{embedding_} : std::vector<Parameter*>{};
}

}  // namespace streambp
