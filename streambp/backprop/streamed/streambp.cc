// StreamBP (arXiv 2506.03077): each layer's chain rule streamed over chunks of the sequence, here from last
// to first.
//
// A chunk's rows reach later rows only through their keys and values. Taken last to first, a chunk's keys and
// values have received all the gradient they will get before the chunk itself is run, so one backward call
// with three roots (output, keys, values) finishes it, and nothing is computed twice but one layer's key and
// value projections.
#include <algorithm>
#include <optional>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/streamed_forward.h"
#include "streambp/backprop/wide_gradients.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/weight_provider.h"

namespace streambp {
namespace {

/// The chunks to be run with the head: in a dry run a chunk stands for another one only if as much of it is
/// scored.
std::vector<int64_t> scored_alike(const Pass& pass, const Chunks& chunks) {
  const HeadTargets& scored = pass.head.scored;
  return chunks.to_run_by([&](const Rows& rows) {
    const auto [first, end] = scored.within(rows.begin, rows.end);
    return std::vector<int64_t>{end - first, scored.are_contiguous(first, end)};
  });
}

/// The gradient of the final hidden states [N, D], which it is written over. A sum over tokens is taken chunk
/// by chunk, in the order in which the last layer's chunks would bring them: the gradients are then the same
/// to the last bit whether the head is joined to that layer or not.
at::Tensor separate_head(const Pass& pass, const Chunks& chunks, at::Tensor hidden, HeadOutcome& outcome) {
  if (!pass.stream_head || !pass.objective.separable())
    return head_gradient(pass, std::move(hidden), outcome);
  StreamedHead head(pass.head, pass.objective, pass.head_chunk, chunks.size());
  const std::vector<int64_t> to_run = scored_alike(pass, chunks);
  for (auto step = to_run.rbegin(); step != to_run.rend(); ++step) {
    const Rows rows = chunks.rows(*step);
    at::Tensor of_chunk = hidden.narrow(0, rows.begin, rows.size());
    head.run(rows.begin, of_chunk);
  }
  outcome = head.outcome();
  return hidden;
}

/// The layers' backward pass over what a StreamedForward has kept.
class StreamedBackward {
 public:
  StreamedBackward(const Pass& pass, StreamedForward& forward)
      : pass_(pass), model_(pass.model), forward_(forward), lowest_(pass.model.lowest_trainable_layer()) {}

  /// The last layer, whose chunks go through the head, with its parameters `of_head`, as soon as they have
  /// been run.
  void run_with_head(StreamedHead& head, const std::vector<Parameter*>& of_head) {
    const auto layer = static_cast<int64_t>(model_.layers().size()) - 1;
    gradient_ = forward_.gradient_room(layer);
    run_layer(layer, &head, of_head);
  }

  /// The layers from `layer` down, from the gradient of the output of `layer` (undefined: it is there).
  void run_from(int64_t layer, at::Tensor gradient = {}) {
    if (gradient.defined()) gradient_ = std::move(gradient);
    for (; layer >= std::max<int64_t>(lowest_, 0); --layer) run_layer(layer);
    // All at once: a token's rows are summed wide, and rounded once.
    if (lowest_ < 0) accumulate_embedding(pass_, pass_.stream.rows(0, pass_.stream.size()), gradient_);
    use_gradients(pass_, model_.embedding_parameters());  // of a frozen one those of per-layer inputs, if any
  }

 private:
  void run_layer(int64_t layer, StreamedHead* head = nullptr, const std::vector<Parameter*>& of_head = {}) {
    forward_.rebuild_input(layer);
    const LayerWeights weights(model_, layer,
                               layer > std::max<int64_t>(lowest_, 0)
                                   ? std::optional(forward_.rebuilt_from(layer - 1))
                                   : std::nullopt);
    const std::vector<Parameter*> parameters = begin_layer_gradients(pass_, layer);
    const Span span("layer {} backward", layer);
    WideGradients sums(model_, forward_.chunks().count() > 1 ? model_.parameters_added_to(layer)
                                                             : std::vector<Parameter*>{});
    if (pass_.order == Order::kForward && !model_.config().in_reverse_alone(layer)) {
      backward_in_order(pass_, forward_, layer, gradient_);
    } else {
      const Chunks& chunks = forward_.chunks();
      const LayerRun run = pass_.layer_run(/*graph_only=*/head == nullptr);
      const std::vector<int64_t> to_run = head == nullptr ? chunks.to_run() : scored_alike(pass_, chunks);
      if (const auto attention = forward_.attention_of(layer)) {
        backward_around_attention(model_, forward_, layer, run, to_run, gradient_, head, *attention);
      } else {
        backward_in_reverse(model_, forward_, layer, run, to_run, gradient_, head);
      }
    }
    sums.round();
    if (head != nullptr) head->round_sums();
    use_gradients(pass_, of_head);  // before the layer's, whether they are joined or not
    use_gradients(pass_, parameters);
    forward_.drop(layer);
  }

  const Pass& pass_;
  Model& model_;
  StreamedForward& forward_;
  int64_t lowest_;       // layer with anything to train; below 0: the embedding too
  at::Tensor gradient_;  // [N, D]: of the current layer's output; each chunk replaces its rows by its input's
};

}  // namespace

HeadOutcome run_streambp(const Pass& pass) {
  const auto layers = static_cast<int64_t>(pass.model.layers().size());
  StreamedForward forward(pass.model, pass.stream, pass.chunk, pass.keep, pass.part);
  forward.run(pass.joins_head ? layers - 1 : layers);
  pass.close_forward();
  begin_gradients(pass, pass.model.head_parameters());
  const std::vector<Parameter*> of_head = head_group(pass.model);
  StreamedBackward backward(pass, forward);
  if (!pass.joins_head) {
    HeadOutcome outcome;
    at::Tensor gradient = separate_head(pass, forward.chunks(), forward.take_hidden(), outcome);
    use_gradients(pass, of_head);
    backward.run_from(layers - 1, std::move(gradient));
    return outcome;
  }
  StreamedHead head(pass.head, pass.objective, pass.head_chunk, pass.chunk);
  backward.run_with_head(head, of_head);
  backward.run_from(layers - 2);
  return head.outcome();
}

void hand_over_unscored(Model& model, const Keep& keep, GradientConsumer& consumer) {
  const auto layers = static_cast<int64_t>(model.layers().size());
  const auto hand_over_zeros = [&](const std::vector<Parameter*>& group) {
    model.allocate_gradients(group);
    hand_over(model, consumer, group);
  };
  // As StreamedForward asks, and keeps inputs.
  std::vector<bool> has_input(static_cast<size_t>(layers) + 1);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::optional<int64_t> backward = keep.first < layers ? std::optional(layer) : std::nullopt;
    const LayerWeights weights(model, layer, layer + 1 < layers ? std::optional(layer + 1) : backward);
    has_input[layer] = layer == 0 || keeps_input(layer, keep.first, layers, keep.every);
  }
  const auto rebuilt_from = [&](int64_t layer) {
    while (!has_input[layer]) --layer;
    return layer;
  };
  hand_over_zeros(head_group(model));
  for (int64_t layer = layers - 1; layer >= keep.first; --layer) {
    for (int64_t from = rebuilt_from(layer); from < layer; ++from) {
      const LayerWeights weights(model, from, from + 1);
      has_input[from + 1] = true;
    }
    const LayerWeights weights(model, layer,
                               layer > keep.first ? std::optional(rebuilt_from(layer - 1)) : std::nullopt);
    hand_over_zeros(model.layer_parameters(layer));
  }
  hand_over_zeros(model.embedding_parameters());
}

at::Tensor streamed_hidden_states(Model& model, const Stream& stream, int64_t chunk, StreamPart* part) {
  const at::NoGradGuard no_grad;
  Keep nothing;
  nothing.first = static_cast<int64_t>(model.layers().size());
  if (stream.picks != nullptr) stream.picks->keep_none();
  StreamedForward forward(model, stream, chunk, nothing, part);
  forward.run(nothing.first);
  return forward.take_hidden();
}

}  // namespace streambp
