// Operations of a model's linear maps, token by token.
#pragma once

#include "streambp/model/layer.h"

namespace streambp::plan {

/// Floating-point operations of one token through some linear maps and back, a multiplication and an addition
/// counted as two: a map [out, in] takes 2 out in forward, as much for the gradient of its input, and as much
/// for its weight's, where the weight is trained. An adapter of rank r is such maps of r (in + out) weights,
/// but each of its two gradients takes the product with the other matrix again. Biases are not counted.
struct MapFlops {
  double forward = 0.0;
  double backward = 0.0;
  double again = 0.0;  // of `backward`: products of adapters, or gates, that the forward pass or the input's
                       // gradient had

  /// `share`: how often a token meets the map.
  void add(const Linear& map, double share = 1.0);

  /// Gates of streams, which the backward pass computes again; without any nothing.
  void add(const StreamGates& gates);

  /// Maps by which streams are read; without any nothing.
  void add_reading(const StreamMixer& mixer);
};

/// Numbers of a token between the products of a layer's MLP, or of its chosen experts.
double mlp_width(const Config& config, int64_t layer);

/// Adds the maps of a shared block that are not its attention's projections.
void add_block(const SharedBlock& block, MapFlops& maps);

/// Adds a layer's MLP, or its router and experts, to `mlp`, and the last projections to `down`.
void add_mlp(const DecoderLayer::Weights& weights, MapFlops& mlp, MapFlops& down);

}  // namespace streambp::plan
