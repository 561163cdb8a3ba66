// Gradient checkpointing (Chen et al., 2016, arXiv 1604.06174): each layer's input is kept, each layer run
// again in the backward pass. With a streamed head it is logits-only.
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {

HeadOutcome run_by_layers(const Pass& pass, const LayerForward& forward, const LayerBackward& backward) {
  Model& model = pass.model;
  const auto layers = static_cast<int64_t>(model.layers().size());
  const int64_t lowest = model.lowest_trainable_layer();
  const int64_t first = std::max<int64_t>(lowest, 0);  // the lowest layer with a backward pass
  std::vector<at::Tensor> inputs(static_cast<size_t>(layers));

  at::Tensor hidden;
  {
    const MemoryScope scope("layer inputs");
    hidden = model.embed(pass.stream.batch.tokens);
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (i >= first) inputs[i] = hidden;
    const Span span("layer {} forward", i);
    at::Tensor output;
    {
      const MemoryScope scope("layer inputs");
      output = forward(model.layers()[i], hidden);
    }
    hidden.reset();
    hidden = std::move(output);
  }
  pass.close_forward();
  HeadOutcome outcome;
  at::Tensor gradient = head_gradient(pass, std::move(hidden), outcome);

  for (int64_t i = layers - 1; i >= first; --i) {
    const Span span("layer {} backward", i);
    const MemoryScope scope("activations");
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = inputs[i].detach().requires_grad_();
    inputs[i].reset();
    gradient = backward(model.layers()[i], leaf, gradient);
  }
  if (lowest < 0) model.accumulate_embedding(pass.stream.batch.tokens, gradient);
  return outcome;
}

HeadOutcome run_checkpoint(const Pass& pass) {
  const Rows rows = pass.all_rows();
  return run_by_layers(
      pass,
      [&](const DecoderLayer& layer, const at::Tensor& hidden) {
        return layer.forward(hidden, rows, {}, pass.layer_run()).hidden;
      },
      [&](const DecoderLayer& layer, const at::Tensor& leaf, const at::Tensor& gradient) {
        const at::Tensor output = layer.forward(leaf, rows, {}, pass.layer_run(/*graph_only=*/true)).hidden;
        return torch::autograd::grad({output}, {leaf}, {gradient}).front();
      });
}

}  // namespace streambp
