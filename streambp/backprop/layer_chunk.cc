#include "streambp/backprop/layer_chunk.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>

namespace streambp {

LayerChunk::LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& rows,
                       const Before& before, const LayerRun& run, Activations known) {
  const at::AutoGradMode with_grad(true);
  leaf_ = input.detach().requires_grad_();
  output_ = layer.forward(leaf_, rows, before, run, std::move(known));
  output_.activations = {};
}

at::Tensor LayerChunk::backward(const at::Tensor& gradient, const Carry& received) {
  std::vector<at::Tensor> roots{output_.hidden};
  std::vector<at::Tensor> gradients{gradient};
  if (const std::vector<at::Tensor> left = received.tensors(); !left.empty()) {
    const std::vector<at::Tensor> own = output_.own.tensors();
    roots.insert(roots.end(), own.begin(), own.end());
    gradients.insert(gradients.end(), left.begin(), left.end());
  }
  output_ = {};
  return torch::autograd::grad(roots, {leaf_}, gradients).front();
}

}  // namespace streambp
