#include "streambp/backprop/layer_chunk.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>

namespace streambp {

LayerChunk::LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& rows,
                       const Prefix& prefix, const LayerRun& run, Activations known) {
  const at::AutoGradMode with_grad(true);
  leaf_ = input.detach().requires_grad_();
  output_ = layer.forward(leaf_, rows, prefix, run, std::move(known));
  output_.activations = {};
}

at::Tensor LayerChunk::backward(const at::Tensor& gradient, const KeysValues& received) {
  std::vector<at::Tensor> roots{output_.hidden};
  std::vector<at::Tensor> gradients{gradient};
  if (received.keys.defined()) {
    roots.insert(roots.end(), {output_.own.keys, output_.own.values});
    gradients.insert(gradients.end(), {received.keys, received.values});
  }
  output_ = {};
  return torch::autograd::grad(roots, {leaf_}, gradients).front();
}

}  // namespace streambp
