// Which gradients of a model are there when. See model.h.
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/model.h"

namespace streambp {

std::map<std::string, at::Tensor> Model::gradients() const {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    if (parameter->gradient.defined()) gradients.emplace(parameter->name, parameter->gradient);
  }
  return gradients;
}

void Model::defer_gradients(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    parameter->deferred = true;
    parameter->gradient.reset();
    renew_parts(*parameter);
  }
}

void Model::defer_gradients() {
  std::vector<Parameter*> all;
  for (const auto& parameter : parameters_) all.push_back(parameter.get());
  defer_gradients(all);
}

void Model::allocate_gradients(const std::vector<Parameter*>& parameters) {
  for (Parameter* parameter : parameters) {
    if (!std::exchange(parameter->deferred, false)) continue;
    parameter->gradient = zero_gradient(parameter->value);
    renew_parts(*parameter);
  }
}

void Model::replace_gradient(Parameter& parameter, at::Tensor gradient) {
  parameter.gradient = std::move(gradient);
  renew_parts(parameter);
}

void Model::renew_parts(const Parameter& whole) {
  const auto found = parts_.find(&whole);
  if (found == parts_.end()) return;
  for (const Part& part : found->second) {
    part.parameter->deferred = whole.deferred;
    part.parameter->value = whole.value.defined() ? part.view(whole.value) : at::Tensor();
    part.parameter->gradient = whole.gradient.defined() ? part.view(whole.gradient) : at::Tensor();
  }
}

std::vector<Parameter*> Model::layer_parameters(int64_t layer, bool trainable_alone) const {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string adapted = "base_model.model." + prefix;
  std::vector<Parameter*> found;
  for (const auto& parameter : parameters_) {
    const std::string& name = parameter->name;
    const bool here = (name.starts_with(prefix) && !is_of_shared_block(name)) || name.starts_with(adapted);
    if (here && (parameter->trainable() || !trainable_alone)) found.push_back(parameter.get());
  }
  return found;
}

std::vector<Parameter*> Model::parameters_added_to(int64_t layer) const {
  std::vector<Parameter*> found = layer_parameters(layer);
  if (alpha_ != nullptr && alpha_->trainable() && config_.rotates(layer)) found.push_back(alpha_);
  if (!config_.runs_block(layer)) return found;
  const std::string prefix = fmt::format("model.layers.{}.shared_transformer.", config_.block_owner(layer));
  for (const auto& parameter : parameters_) {
    if (parameter->name.starts_with(prefix) && parameter->trainable()) found.push_back(parameter.get());
  }
  return found;
}

namespace {

/// Of these, without what is absent, and frozen ones where `trainable_alone`.
std::vector<Parameter*> present(const std::vector<Parameter*>& parameters, bool trainable_alone = true) {
  std::vector<Parameter*> found;
  for (Parameter* parameter : parameters) {
    if (parameter != nullptr && (parameter->trainable() || !trainable_alone)) found.push_back(parameter);
  }
  return found;
}

}  // namespace

std::vector<Parameter*> Model::head_parameters(bool trainable_alone) const {
  std::vector<Parameter*> all{norm_.weight};
  if (const StreamMixer& mixer = head_mixer_; mixer.is_there()) {
    for (const Linear* map : {mixer.down, mixer.up}) {
      all.push_back(map->weight);
      if (map->adapter) all.insert(all.end(), {map->adapter->a, map->adapter->b, map->adapter->bias});
    }
  }
  if (config_.has_head_gates()) {
    for (const char* name : {"model.hc_head.hc_fn", "model.hc_head.hc_base", "model.hc_head.hc_scale"})
      all.push_back(&parameter(name));
  }
  for (const Linear* head : {head_, value_head_}) {
    if (head == nullptr) continue;
    all.insert(all.end(), {head->weight, head->bias});
    if (head->trained_rows != nullptr) all.push_back(head->trained_rows->delta);
    if (head->adapter) all.insert(all.end(), {head->adapter->a, head->adapter->b, head->adapter->bias});
  }
  return present(all, trainable_alone);
}

std::vector<Parameter*> Model::embedding_parameters() const {
  std::vector<Parameter*> found = present_embedding_parameters();
  if (alpha_ != nullptr && alpha_->trainable()) found.push_back(alpha_);
  if (!config_.layers_read_embedding()) return found;
  for (const auto& parameter : parameters_) {
    const bool here = parameter->name.find("model.per_layer_") != std::string::npos ||
                      parameter->name.find("model.embed_tokens_per_layer.") != std::string::npos ||
                      is_of_shared_block(parameter->name);
    if (here && parameter->trainable()) found.push_back(parameter.get());
  }
  return found;
}

std::vector<Parameter*> Model::present_embedding_parameters() const {
  std::vector<Parameter*> all{embedding_};
  if (embedding_rows_ != nullptr) all.push_back(embedding_rows_->delta);
  if (embedding_adapter_) all.insert(all.end(), {embedding_adapter_->a, embedding_adapter_->b});
  return present(all);
}

}  // namespace streambp
