// Standard back-propagation: every activation is kept from the forward pass to the backward pass.
#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {

HeadOutcome run_standard(const Pass& pass) {
  Model& model = pass.model;
  const Rows rows = pass.all_rows();
  const int64_t lowest = model.lowest_trainable_layer();
  const MemoryScope scope("layer inputs");
  at::Tensor leaf = model.embed(pass.stream.batch.tokens);
  const at::AutoGradMode with_grad(true);
  if (lowest <= 0) leaf.requires_grad_();
  at::Tensor hidden = leaf;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Span span("layer {} forward", static_cast<int64_t>(i));
    hidden = model.layers()[i].forward(hidden, rows, {}, pass.layer_run()).hidden;
    // Below the lowest trainable layer nothing carries a graph; the next layer's input starts one.
    if (static_cast<int64_t>(i) + 1 == lowest) leaf = hidden.requires_grad_();
  }
  pass.close_forward();
  const MemoryScope rest("activations");
  HeadOutcome outcome;
  at::Tensor gradient;
  if (pass.stream_head) {
    // Nothing above the last layer has kept its output: its gradient may be written over it.
    const at::Tensor d_hidden = head_gradient(pass, hidden.detach(), outcome);
    if (static_cast<size_t>(std::max<int64_t>(lowest, 0)) == model.layers().size()) return outcome;
    const Span span("layers backward");
    gradient = torch::autograd::grad({hidden}, {leaf}, {d_hidden}).front();
  } else {
    const at::Tensor loss = full_head(pass.head, pass.objective, hidden, pass.ops, outcome);
    hidden.reset();
    const Span span("head and layers backward");
    const MemoryScope backward("logits");  // what is not a layer's own is the head's
    gradient = torch::autograd::grad({loss}, {leaf}).front();
  }
  if (lowest < 0) model.accumulate_embedding(pass.stream.batch.tokens, gradient);
  return outcome;
}

}  // namespace streambp
