// Gradient checkpointing (Chen et al., 2016, arXiv 1604.06174): each layer's input is kept, each layer run
// again in the backward pass.
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {

HeadOutcome run_checkpoint(const Pass& pass) {
  Model& model = pass.model;
  const auto layers = static_cast<int64_t>(model.layers().size());
  const Rows rows = pass.all_rows();
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
      output = model.layers()[i].forward(hidden, rows, {}).hidden;
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
    const at::Tensor output = model.layers()[i].forward(leaf, rows, {}).hidden;
    gradient = torch::autograd::grad({output}, {leaf}, {gradient}).front();
  }
  if (lowest < 0) model.accumulate_embedding(pass.stream.batch.tokens, gradient);
  return outcome;
}

}  // namespace streambp
