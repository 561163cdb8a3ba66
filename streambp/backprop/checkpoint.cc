// Gradient checkpointing (Chen et al., 2016, arXiv 1604.06174): each layer's input is kept, each layer run
// again in the backward pass. With a streamed head it is logits-only.
#include <algorithm>
#include <optional>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/backprop/wide_gradients.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/weight_provider.h"

namespace streambp {

HeadOutcome run_by_layers(const Pass& pass, const LayerForward& forward, const LayerBackward& backward) {
  Model& model = pass.model;
  const auto layers = static_cast<int64_t>(model.layers().size());
  const int64_t lowest = model.lowest_trainable_layer();
  const int64_t first = std::max<int64_t>(lowest, 0);  // the lowest layer with a backward pass
  std::vector<at::Tensor> inputs(static_cast<size_t>(layers));
  SharedKeysValues* const shared = pass.stream.shared.get();
  const auto before_of = [&](int64_t layer) {
    Before before;
    if (model.config().shares_keys_values(layer)) before.shared = shared->rows(layer, 0, pass.stream.size());
    return before;
  };

  at::Tensor hidden;
  {
    const MemoryScope scope("layer inputs");
    hidden = model.embed(pass.stream.batch.tokens);
  }
  for (int64_t i = 0; i < layers; ++i) {
    if (i >= first) inputs[i] = hidden;
    const Span span("layer {} forward", i);
    const std::optional<int64_t> backward_next = first < layers ? std::optional(i) : std::nullopt;
    const LayerWeights weights(model, i, i + 1 < layers ? std::optional(i + 1) : backward_next);
    at::Tensor output;
    {
      const MemoryScope scope("layer inputs");
      Carry own;
      output = forward(model.layers()[i], hidden, before_of(i), own);
      if (model.config().has_consumers(i)) shared->store(i, 0, own.attention);
    }
    hidden.reset();
    hidden = std::move(output);
  }
  pass.close_forward();
  HeadOutcome outcome;
  begin_gradients(pass, model.head_parameters());
  at::Tensor gradient = head_gradient(pass, std::move(hidden), outcome);
  use_gradients(pass, head_group(model));

  for (int64_t i = layers - 1; i >= first; --i) {
    const Span span("layer {} backward", i);
    const LayerWeights weights(model, i, i > first ? std::optional(i - 1) : std::nullopt);
    const std::vector<Parameter*> parameters = begin_layer_gradients(pass, i);
    const bool adds_by_tiles = pass.chunk > 0 && pass.chunk < pass.stream.size();
    WideGradients sums(model, adds_by_tiles ? model.parameters_added_to(i) : std::vector<Parameter*>{});
    const MemoryScope scope("activations");
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = inputs[i].detach().requires_grad_();
    inputs[i].reset();
    Carry received;
    if (model.config().has_consumers(i)) received.attention = shared->received(i, 0, pass.stream.size());
    gradient = backward(model.layers()[i], leaf, gradient, before_of(i), received);
    if (shared != nullptr) shared->drop(i);
    if (pass.stream.picks != nullptr) pass.stream.picks->drop(i);
    const at::NoGradGuard no_grad;
    sums.round();
    use_gradients(pass, parameters);
  }
  if (lowest < 0) accumulate_embedding(pass, pass.all_rows(), gradient);
  use_gradients(pass, model.embedding_parameters());
  return outcome;
}

HeadOutcome run_checkpoint(const Pass& pass) {
  const Rows rows = pass.all_rows();
  return run_by_layers(
      pass,
      [&](const DecoderLayer& layer, const at::Tensor& hidden, const Before& before, Carry& own) {
        LayerOutput output = layer.forward(hidden, rows, before, pass.layer_run());
        own = std::move(output.own);
        return output.hidden;
      },
      [&](const DecoderLayer& layer, const at::Tensor& leaf, const at::Tensor& gradient, const Before& before,
          const Carry& received) {
        return LayerChunk(layer, leaf, rows, before, pass.layer_run(/*graph_only=*/true))
            .backward(gradient, received);
      });
}

}  // namespace streambp
