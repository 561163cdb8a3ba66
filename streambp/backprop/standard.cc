// Standard back-propagation: every activation is kept from the forward pass to the backward pass.
#include <map>
#include <optional>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/weight_provider.h"

namespace streambp {

HeadOutcome run_standard(const Pass& pass) {
  Model& model = pass.model;
  Rows rows = pass.all_rows();
  const int64_t lowest = model.lowest_trainable_layer();
  const auto layers = static_cast<int64_t>(model.layers().size());
  std::optional<LayerWeights> weights;  // of the layer that is run; its graph reads them again
  const MemoryScope scope("layer inputs");
  at::Tensor leaf = model.embed(pass.stream.batch.tokens);
  const at::AutoGradMode with_grad(true);
  if (lowest <= 0) leaf.requires_grad_();
  at::Tensor hidden = leaf;
  std::vector<at::Tensor> leaves{leaf};
  std::map<int64_t, KeysValues> shared;  // of layers that others read, with their graph
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const Span span("layer {} forward", layer);
    weights.reset();
    weights.emplace(model, layer, layer + 1 < layers ? layer + 1 : layer);
    if (layer == std::max<int64_t>(lowest, 0) && rows.embedded.defined())
      leaves.push_back(rows.embedded = rows.embedded.detach().requires_grad_());
    Before before;
    if (model.config().shares_keys_values(layer)) {
      const KeysValues& of_producer = shared.at(model.config().producer_of(layer));
      before.shared.keys = of_producer.keys;
      before.shared.values = of_producer.values;
    }
    LayerOutput output = model.layers()[i].forward(hidden, rows, before, pass.layer_run());
    if (model.config().has_consumers(layer)) shared.emplace(layer, std::move(output.own.attention));
    hidden = std::move(output.hidden);
    // Below the lowest trainable layer nothing carries a graph; the next layer's input starts one.
    if (layer + 1 == lowest) leaves.front() = leaf = hidden.requires_grad_();
    if (layer < lowest || !hidden.requires_grad()) continue;
    // The gradient of its output is there: the layer's backward pass begins, and that of the one above is
    // done.
    hidden.register_hook([&weights, &model, layer, lowest](const at::Tensor&) {
      weights.reset();
      weights.emplace(model, layer, layer > lowest && layer > 0 ? std::optional(layer - 1) : std::nullopt);
    });
  }
  shared.clear();
  weights.reset();
  pass.close_forward();
  const MemoryScope rest("activations");
  HeadOutcome outcome;
  std::vector<at::Tensor> gradients;
  if (pass.stream_head) {
    // Nothing above the last layer has kept its output: its gradient may be written over it.
    const at::Tensor d_hidden = head_gradient(pass, hidden.detach(), outcome);
    if (static_cast<size_t>(std::max<int64_t>(lowest, 0)) == model.layers().size()) return outcome;
    const Span span("layers backward");
    gradients = torch::autograd::grad({hidden}, leaves, {d_hidden}, /*retain_graph=*/std::nullopt,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  } else {
    const at::Tensor loss = full_head(pass.head, pass.objective, hidden, pass.ops, outcome);
    hidden.reset();
    const Span span("head and layers backward");
    const MemoryScope backward("logits");  // what is not a layer's own is the head's
    gradients = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/std::nullopt,
                                      /*create_graph=*/false, /*allow_unused=*/true);
  }
  if (lowest >= 0) return outcome;
  if (gradients.size() > 1 && gradients[1].defined()) gradients[0].add_(gradients[1]);
  model.accumulate_embedding(pass.stream.batch.tokens, gradients[0]);
  return outcome;
}

}  // namespace streambp
