// Weights of a layer that are on the model's device only while the layer is run.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string_view>

namespace streambp {

class Model;

/// The layer that a parameter of this name, Hugging Face's or PEFT's, belongs to; none: it is no layer's.
std::optional<int64_t> layer_of(std::string_view parameter);

/// Brings the weights of a model's layers: from the host's memory, from other ranks. Methods ask for a layer
/// once a pass forward and once backward, whatever the chunks; those that run it more often (streambp with
/// Settings::every) ask as often as they run it, and chunk-major, whose chunks go through all layers, once a
/// pass.
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

  /// Whether values that change while a layer is there stay changed.
  virtual bool keeps_changes() const { return true; }
};

/// A provider that brings one layer after another, and takes away those that are not wanted: what is left to
/// say is how. For one pass at a time.
class LayerByLayer : public WeightProvider {
 public:
  void enter(int64_t layer, std::optional<int64_t> next) final;
  void leave(int64_t layer) noexcept final;

 protected:
  /// The layer, which is away, is wanted next: a copy may begin.
  virtual void begin(int64_t /*layer*/) {}
  /// Makes the values of the layer be there, which is away or has begun to come.
  virtual void bring(int64_t layer) = 0;
  /// Takes the layer's memory away, whether it is there or on its path.
  virtual void remove(int64_t layer) noexcept = 0;

 private:
  enum class State { kComing, kHere, kEntered };
  std::map<int64_t, State> states_;  // of layers that are not away
  std::optional<int64_t> next_;
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

/// The same of all layers, for methods that go through them chunk by chunk.
class AllLayerWeights {
 public:
  explicit AllLayerWeights(const Model& model);

 private:
  std::list<LayerWeights> layers_;
};

}  // namespace streambp
