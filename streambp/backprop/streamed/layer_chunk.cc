#include "streambp/backprop/streamed/layer_chunk.h"

#include <utility>

#include <torch/csrc/autograd/autograd.h>

namespace streambp {

OtherInputs::OtherInputs(Rows& rows, Before& before) {
  if (rows.embedded.defined()) add(rows.embedded, rows.embedded_gradient);
  Prefix& shared = before.shared;
  if (!shared.key_gradients.defined()) return;
  add(shared.keys, shared.key_gradients);
  add(shared.values, shared.value_gradients);
}

void OtherInputs::add(at::Tensor& input, const at::Tensor& gradient) {
  input = input.detach().requires_grad_();
  leaves_.push_back(input);
  gradients_.push_back(gradient);
}

void OtherInputs::add_root(const at::Tensor& output, const at::Tensor& gradient) {
  roots_.push_back(output);
  of_roots_.push_back(gradient);
}

at::Tensor OtherInputs::backward(const at::Tensor& output, const Carry& own, const at::Tensor& leaf,
                                 const at::Tensor& gradient, const Carry& received) const {
  std::vector<at::Tensor> roots{output};
  std::vector<at::Tensor> gradients{gradient};
  roots.insert(roots.end(), roots_.begin(), roots_.end());
  gradients.insert(gradients.end(), of_roots_.begin(), of_roots_.end());
  for (const auto& [carried, left] : {std::pair(own.attention.keys, received.attention.keys),
                                      std::pair(own.attention.values, received.attention.values),
                                      std::pair(own.recurrent.state, received.recurrent.state),
                                      std::pair(own.recurrent.tail, received.recurrent.tail),
                                      std::pair(own.recurrent.ngram_tail, received.recurrent.ngram_tail)}) {
    if (!left.defined()) continue;
    roots.push_back(carried);
    gradients.push_back(left);
  }
  std::vector<at::Tensor> leaves{leaf};
  leaves.insert(leaves.end(), leaves_.begin(), leaves_.end());
  // Not every layer reads the first hidden states.
  const std::vector<at::Tensor> all =
      torch::autograd::grad(roots, leaves, gradients, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (!all[i + 1].defined()) continue;
    if (gradients_[i].defined()) gradients_[i].add_(all[i + 1]);
  }
  return all.front();
}

LayerChunk::LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& given,
                       const Before& given_before, const LayerRun& run, Activations known) {
  const at::AutoGradMode with_grad(true);
  leaf_ = input.detach().requires_grad_();
  Rows rows = given;
  Before before = given_before;
  others_ = OtherInputs(rows, before);
  output_ = layer.forward(leaf_, rows, before, run, std::move(known));
  output_.activations = {};
}

LayerChunk::LayerChunk(const DecoderLayer& layer, const at::Tensor& input, const Rows& given,
                       const at::Tensor& of_attended, const LayerRun& run, Activations known) {
  const at::AutoGradMode with_grad(true);
  leaf_ = input.detach().requires_grad_();
  Rows rows = given;
  Before none;
  others_ = OtherInputs(rows, none);
  others_.add(known.attention.output, of_attended);
  output_ = layer.after_attention(leaf_, std::move(known), rows, run);
  output_.activations = {};
}

at::Tensor LayerChunk::backward(const at::Tensor& gradient, const Carry& received) {
  const LayerOutput output = std::exchange(output_, {});
  return others_.backward(output.hidden, output.own, leaf_, gradient, received);
}

}  // namespace streambp
