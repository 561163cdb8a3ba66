// Adapters off, and adapters added to the base's weights. See model.h.
#include <string_view>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/lora/peft_name.h"
#include "streambp/model/model.h"
#include "streambp/model/weight_provider.h"

namespace streambp {

void Model::enable_adapters(bool enabled) {
  for (const auto& map : maps_) {
    if (map->adapter) map->adapter->enabled = enabled;
  }
  if (embedding_adapter_) embedding_adapter_->enabled = enabled;
  for (const auto& rows : trained_rows_) {
    rows->enabled = enabled;
    rows->write();
  }
  for (SavedParameter& saved : saved_) {
    if (enabled == !saved.value.defined()) continue;  // as it is already
    if (enabled) {
      saved.trained->value = std::exchange(saved.value, {});
    } else {
      saved.value = std::exchange(saved.trained->value, saved.base->value);
    }
    renew_parts(*saved.trained);
  }
}

void Model::split_head() {
  Linear& head = map_of("lm_head");
  config_.tie_word_embeddings = false;
  if (head.weight != embedding_) return;
  Parameter& own = add_parameter({"lm_head.weight", embedding_->value.sizes().vec()}, /*trainable=*/false);
  own.value.copy_(embedding_->value);
  head.weight = &own;
}

void Model::merge_adapters() {
  if (provider_ != nullptr && !provider_->keeps_changes())
    throw InputError(
        "LoRA: adapters can't be merged into quantised weights, expected a base of whole numbers");
  for (const auto& map : maps_) {
    if (map->adapter && map->name.find(kSharedBlock) != std::string::npos)
      throw InputError(
          "LoRA: adapters can't be merged into {}, whose weight other layers have without this layer's "
          "adapter",
          map->name);
  }
  const AllLayerWeights weights(*this);
  enable_adapters(true);
  for (const auto& rows : trained_rows_) rows->write();
  const bool is_tied = config_.tie_word_embeddings && head_ != nullptr;
  if (is_tied && (embedding_adapter_ || head_->adapter || head_->weight != embedding_)) split_head();
  if (embedding_adapter_) {
    const LowRankAdapter& adapter = *embedding_adapter_;
    embedding_->value.addmm_(adapter.a->value.t(), adapter.b->value.t(), /*beta=*/1, adapter.scale);
    embedding_adapter_.reset();
  }
  for (const auto& map : maps_) {
    map->trained_rows = nullptr;
    if (!map->adapter) continue;
    const LowRankAdapter& adapter = *map->adapter;
    map->weight->value.addmm_(adapter.b->value, adapter.a->value, /*beta=*/1, adapter.scale);
    if (adapter.bias != nullptr) {
      if (map->bias == nullptr)
        throw InputError("LoRA: the bias of {}'s adapter can't be merged, the map has none", map->name);
      map->bias->value.add_(adapter.bias->value, adapter.scale);
    }
    map->adapter.reset();
  }
  embedding_rows_ = nullptr;
  trained_rows_.clear();
  for (const auto& [bias, name] : trained_biases_) {
    rename(*bias, name);
    bias->gradient.reset();
  }
  trained_biases_.clear();
  take_saved_parameters();
  const auto is_gone = [](const auto& parameter) { return is_peft_name(parameter->name); };
  for (const auto& parameter : parameters_) {
    if (is_gone(parameter)) parts_.erase(parameter.get());
  }
  std::erase_if(by_name_, [](const auto& entry) { return is_peft_name(entry.first); });
  std::erase_if(parameters_, is_gone);
  lora_.reset();
}

void Model::take_saved_parameters() {
  for (const SavedParameter& saved : std::exchange(saved_, {})) {
    const std::string name = saved.trained->name.substr(std::string_view(kPeftPrefix).size());
    const bool base_stays = saved.base->name != name ||  // the embedding, of a head that was tied to it
                            (head_ != nullptr && head_->weight == saved.base);
    saved.trained->gradient = saved.base->gradient;
    if (!base_stays) {
      std::erase_if(parameters_, [&](const auto& parameter) { return parameter.get() == saved.base; });
    } else if (saved.base->name == name) {
      rename(*saved.base, "lm_head.weight");
    }
    rename(*saved.trained, name);
    renew_parts(*saved.trained);
  }
}

}  // namespace streambp
