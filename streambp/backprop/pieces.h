// A pass in pieces, for callers with an autograd of their own: one decoder layer, or the end of the network,
// as one node of their graph. Layer inputs and gradients are the caller's to keep.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/kept/kept_layers.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// A stream for layers that run alone: as Model::prepare gives it, and where the model has experts, with room
/// for those that tokens choose. Its first layer_backward ends the forward pass.
Stream prepare_pieces(const Model& model, const Batch& batch);

/// What a layer that runs alone keeps for its backward pass besides its input: which activations, and the
/// tensors that hold them, which the caller has in the meantime.
struct KeptPiece {
  KeptLayers which = {};
  std::vector<at::Tensor> tensors = {};
};

/// The output [N, D] of `layer` for its input x [N, D], by chunks of `chunk` tokens (0: auto_chunk).
/// `router_logits`: receives [N, X] of the layer's router; [0] of a layer without one. Throws InputError for
/// routers whose scores are no softmax of their logits. `kept`: receives tensors.
at::Tensor layer_forward(const Model& model, const Stream& stream, int64_t layer, const at::Tensor& x,
                         int64_t chunk, at::Tensor* router_logits = nullptr, KeptPiece* kept = nullptr);

/// The gradient [N, D] of x for that of the output, dy [N, D], which is not written to. Adds the gradients of
/// the layer's trainable parameters. What of the layer is not `kept` runs again, chunk by chunk, from last to
/// first.
/// `d_router_logits`: the gradient [N, X] of the router's logits, where a loss depends on them.
at::Tensor layer_backward(Model& model, const Stream& stream, int64_t layer, const at::Tensor& x,
                          const at::Tensor& dy, int64_t chunk, const at::Tensor& d_router_logits = {},
                          const std::vector<at::Tensor>& kept = {});

/// What the end of the network gives.
struct HeadPiece {
  double loss = 0.0;
  at::Tensor gradient;           // [N, D] of the hidden states; undefined where none was asked for
  at::Tensor log_probabilities;  // [N] float64, 0 where a token has no target; undefined where there are none
};

/// Final norm, LM head and `objective` of `batch`, for the last layer's output `hidden` [N, D], by chunks of
/// `head_chunk` scored tokens (0: auto_head_chunk). With `goes_back` the gradient of hidden, and those of the
/// trainable parameters there are added. Throws InputError as backpropagate does, and for an objective with a
/// divergence, a pooling or a loss of routers.
HeadPiece head_piece(Model& model, const Batch& batch, const Objective& objective, const at::Tensor& hidden,
                     int64_t head_chunk, bool goes_back);

/// loss = sum over scored tokens of weight * log p(target), with the logits divided by `temperature`: the end
/// of the network for a loss that is computed elsewhere, whose gradient in the log-probabilities `weights`
/// [N] are (undefined: none are known yet, and no gradient may be asked for).
std::unique_ptr<Objective> weighted_log_probabilities(const Batch& batch, const at::Tensor& weights,
                                                      double temperature);

}  // namespace streambp
