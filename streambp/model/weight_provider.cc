#include "streambp/model/weight_provider.h"

#include <charconv>
#include <iterator>

#include "streambp/model/model.h"

namespace streambp {

std::optional<int64_t> layer_of(std::string_view parameter) {
  constexpr std::string_view kLayers = "model.layers.";
  constexpr std::string_view kPeft = kPeftPrefix;
  if (parameter.starts_with(kPeft)) parameter.remove_prefix(kPeft.size());
  if (!parameter.starts_with(kLayers) || is_of_shared_block(parameter)) return std::nullopt;
  parameter.remove_prefix(kLayers.size());
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(parameter.data(), parameter.data() + parameter.size(), layer);
  return error == std::errc() ? std::optional(layer) : std::nullopt;
}

void LayerByLayer::enter(int64_t layer, std::optional<int64_t> next) {
  // What is there, or comes, and is not wanted: an earlier pass has ended early.
  for (auto known = states_.begin(); known != states_.end();) {
    const auto [other, state] = *known;
    const bool wanted = state == State::kEntered || other == layer || other == next;
    if (!wanted) remove(other);
    known = wanted ? std::next(known) : states_.erase(known);
  }
  // Coming, until it is there: bring() may throw.
  State& state = states_.try_emplace(layer, State::kComing).first->second;
  if (state == State::kComing) bring(layer);
  state = State::kEntered;
  next_ = next;
  if (next && states_.try_emplace(*next, State::kComing).second) begin(*next);
}

void LayerByLayer::leave(int64_t layer) noexcept {
  if (next_ == layer) {
    states_[layer] = State::kHere;
  } else {
    remove(layer);
    states_.erase(layer);
  }
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
