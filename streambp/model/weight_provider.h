// Weights of a layer that are on the model's device only while the layer is run.
#pragma once

#include <cstdint>
#include <list>
#include <optional>

namespace streambp {

class Model;

/// The layer that a parameter of this name, Hugging Face's or PEFT's, belongs to; none: it is no layer's.
std::optional<int64_t> layer_of(std::string_view parameter);

/// Brings the weights of a model's layers: from the host's memory, from other ranks. Methods ask for a layer
/// once a pass forward and once backward, whatever the chunks; those that run it more often (streambp with
/// Settings::every) or keep a graph over all layers (standard, chunk-major) ask as often as they run it, or
/// once a pass.
class WeightProvider {
 public:
  virtual ~WeightProvider() = default;

  /// From here to leave() the values of all of the layer's parameters are on the model's device. Otherwise
  /// they may be without memory (free_memory in value_memory.h), which leaves their shapes and views.
  /// `next`: the layer that is asked for after this one, maybe the same, so that its copy can begin;
  /// none where nobody knows. Throws OutOfMemory, and what a transport throws.
  virtual void enter(int64_t layer, std::optional<int64_t> next) = 0;

  /// The layer has been run. Values that have changed since enter(), by a step, are the layer's from now on.
  /// Does not throw.
  virtual void leave(int64_t layer) noexcept = 0;
};

/// While it lives, the values of a layer's parameters are there.
class LayerWeights {
 public:
  /// Asks the provider of `model`; does nothing where it has none: all values are there. `next` as in
  /// WeightProvider::enter.
  LayerWeights(const Model& model, int64_t layer, std::optional<int64_t> next = std::nullopt);
  ~LayerWeights();
  LayerWeights(const LayerWeights&) = delete;
  LayerWeights& operator=(const LayerWeights&) = delete;

 private:
  WeightProvider* provider_;
  int64_t layer_;
};

/// The same of all layers, for methods that go through them chunk by chunk, or keep a graph of them all.
class AllLayerWeights {
 public:
  explicit AllLayerWeights(const Model& model);

 private:
  std::list<LayerWeights> layers_;
};

}  // namespace streambp
