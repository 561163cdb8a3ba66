// SeCO's order of back-propagation (arXiv 2505.16710): chunks outside, layers inside.
//
// The forward pass keeps the keys and values of all layers and no layer's input: 2 K E L numbers a token
// where the other methods keep D L. The backward pass takes the chunks last to first. It runs a chunk through
// all layers again under autograd, each with the keys and values of its earlier tokens, and then back: later
// chunks are done, so that the gradient of the chunk's own keys and values is complete in every layer. The
// gradients of keys and values of all layers come on top.
//
// As in SeCO a chunk's graphs of all layers are alive at once. Holding one layer's at a time would take the
// layer inputs of the chunk, and so one more forward pass: for memory that does not grow with the stream.
// Unlike SeCO's one graph from the embedding to the loss, the layers' graphs are apart, so that each is freed
// before the next one's backward pass; the head's pass over the whole stream comes first, so that objectives
// that are no sums over tokens work as everywhere; and where the lowest layers are frozen, the input of the
// first layer above them is kept instead of their keys and values.
#include <algorithm>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/carry_stream.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/weight_provider.h"

namespace streambp {
namespace {

class ChunkMajor {
 public:
  explicit ChunkMajor(const Pass& pass)
      : pass_(pass),
        model_(pass.model),
        layers_(static_cast<int64_t>(model_.layers().size())),
        first_(std::max<int64_t>(model_.lowest_trainable_layer(), 0)),
        chunks_(pass.stream, pass.chunk, model_.device()) {
    using Holds = CarryStream::Holds;
    for (int64_t layer = 0; layer < layers_; ++layer)
      seen_.push_back(
          carry_stream(model_, pass.stream, layer, chunks_, layer < first_ ? Holds::kForward : Holds::kAll));
  }

  /// The final hidden states, [N, D].
  at::Tensor forward() {
    const auto stream = [&] {
      const MemoryScope scope("layer inputs");
      return at::empty({pass_.stream.size(), model_.config().residual_width()},
                       at::TensorOptions().device(model_.device()).dtype(model_.dtype()));
    };
    at::Tensor hidden = stream();
    if (first_ > 0 && first_ < layers_) input_ = stream();
    const MemoryScope scope("chunk");
    for (const int64_t i : chunks_.to_run()) {
      const Span span("chunk {} forward", i);
      const Rows rows = chunks_.rows(i);
      at::Tensor x = model_.embed(chunks_.tokens(rows));
      for (int64_t layer = 0; layer < layers_; ++layer) {
        if (layer == first_ && input_.defined()) rows_of(input_, rows).copy_(x);
        CarryStream& seen = *seen_[layer];
        seen.move_to(seen.first_seen_by(i));
        const LayerOutput output =
            model_.layers()[layer].forward(x, rows, seen.before(rows), pass_.layer_run());
        seen.store(rows, output.own);
        x = output.hidden;
      }
      rows_of(hidden, rows).copy_(x);
    }
    for (int64_t layer = 0; layer < first_; ++layer) seen_[layer].reset();
    return hidden;
  }

  /// From the gradient of the final hidden states, [N, D].
  void backward(const at::Tensor& gradient) {
    if (first_ == layers_) return;
    for (int64_t layer = first_; layer < layers_; ++layer) seen_[layer]->allocate_gradients();
    const MemoryScope scope("chunk");
    for (auto step = chunks_.to_run().rbegin(); step != chunks_.to_run().rend(); ++step) {
      const Span span("chunk {} backward", *step);
      backward_chunk(*step, gradient);
    }
  }

 private:
  static at::Tensor rows_of(const at::Tensor& stream, const Rows& rows) {
    return stream.narrow(0, rows.begin, rows.size());
  }

  void backward_chunk(int64_t index, const at::Tensor& gradient) {
    const Rows rows = chunks_.rows(index);
    std::vector<LayerChunk> runs;
    at::Tensor x = input_.defined() ? rows_of(input_, rows) : model_.embed(chunks_.tokens(rows));
    for (int64_t layer = first_; layer < layers_; ++layer) {
      CarryStream& seen = *seen_[layer];
      seen.move_to(seen.first_seen_by(index));
      runs.emplace_back(model_.layers()[layer], x, rows, seen.before(rows),
                        pass_.layer_run(/*graph_only=*/layer + 1 == layers_));
      x = runs.back().hidden();
    }
    x = rows_of(gradient, rows);
    for (int64_t layer = layers_ - 1; layer >= first_; --layer) {
      const Span span("layer {}", layer);
      x = runs.back().backward(x, seen_[layer]->received(rows));
      runs.pop_back();
    }
    if (model_.lowest_trainable_layer() < 0) accumulate_embedding(pass_, rows, x);
  }

  const Pass& pass_;
  Model& model_;
  int64_t layers_;
  int64_t first_;  // the lowest layer with a backward pass
  Chunks chunks_;
  std::vector<std::unique_ptr<CarryStream>> seen_;  // of each layer
  at::Tensor input_;  // of layer first_, [N, D]; undefined where that is the embedding
};

}  // namespace

HeadOutcome run_chunk_major(const Pass& pass) {
  const AllLayerWeights weights(pass.model);  // each chunk goes through all layers
  ChunkMajor run(pass);
  at::Tensor hidden = run.forward();
  pass.close_forward();
  HeadOutcome outcome;
  const at::Tensor gradient = head_gradient(pass, std::move(hidden), outcome);
  run.backward(gradient);
  return outcome;
}

}  // namespace streambp
