#include "streambp/model/weight_provider.h"

#include <charconv>

#include "streambp/model/model.h"

namespace streambp {

std::optional<int64_t> layer_of(std::string_view parameter) {
  constexpr std::string_view kLayers = "model.layers.";
  constexpr std::string_view kPeft = kPeftPrefix;
  if (parameter.starts_with(kPeft)) parameter.remove_prefix(kPeft.size());
  if (!parameter.starts_with(kLayers)) return std::nullopt;
  parameter.remove_prefix(kLayers.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(parameter.data(), parameter.data() + parameter.size(), layer);
  return error == std::errc() ? std::optional(layer) : std::nullopt;
}

LayerWeights::LayerWeights(const Model& model, int64_t layer, std::optional<int64_t> next)
    : provider_(model.provider()), layer_(layer) {
  if (provider_ != nullptr) provider_->enter(layer, next);
}

LayerWeights::~LayerWeights() {
  if (provider_ != nullptr) provider_->leave(layer_);
}

AllLayerWeights::AllLayerWeights(const Model& model) {
  const auto end = static_cast<int64_t>(model.layers().size());
  for (int64_t layer = 0; layer < end; ++layer)
    layers_.emplace_back(model, layer, layer + 1 < end ? std::optional(layer + 1) : std::nullopt);
}

}  // namespace streambp
