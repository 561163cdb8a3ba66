// StreamBP (arXiv 2506.03077): each layer's chain rule streamed over chunks of the sequence, here from last
// to first.
//
// A chunk's rows reach later rows only through their keys and values. Taken last to first, a chunk's keys and
// values have received all the gradient they will get before the chunk itself is run, so one backward call
// with three roots (output, keys, values) finishes it, and nothing is computed twice but one layer's key and
// value projections.
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/key_values.h"
#include "streambp/backprop/passes.h"
#include "streambp/memory/meter.h"

namespace streambp {
namespace {

/// The forward pass by chunks, and which layers' inputs it keeps.
class StreamedForward {
 public:
  /// Inputs of the layers below `first_kept` are written over.
  StreamedForward(const Model& model, const Stream& stream, int64_t chunk, int64_t first_kept)
      : model_(model),
        stream_(stream),
        chunk_(chunk),
        first_kept_(first_kept),
        inputs_(model.layers().size() + 1) {}

  void run() {
    for (size_t layer = 0; layer < model_.layers().size(); ++layer) forward(static_cast<int64_t>(layer));
  }

  int64_t chunks() const { return (stream_.size() + chunk_ - 1) / chunk_; }

  /// An empty buffer for a layer's keys and values.
  KeyValueStream keys_values(int64_t layer) const { return {model_, layer, chunks(), chunk_}; }

  Rows chunk(int64_t index) const {
    const int64_t begin = index * chunk_;
    return stream_.rows(begin, std::min(begin + chunk_, stream_.size()));
  }

  at::Tensor tokens(const Rows& rows) const {
    return stream_.batch.tokens.narrow(0, rows.begin, rows.size());
  }

  /// The first layer's input is looked up again rather than kept: it costs a copy of the rows.
  at::Tensor input(int64_t layer, const Rows& rows) const {
    return layer == 0 ? model_.embed(tokens(rows)) : inputs_[layer].narrow(0, rows.begin, rows.size());
  }

  /// The output of the last layer [N, D], handed over.
  at::Tensor take_hidden() { return std::move(inputs_.back()); }

  void drop_input(int64_t layer) { inputs_[layer].reset(); }

 private:
  void forward(int64_t layer) {
    at::Tensor& output = inputs_[layer + 1];
    const bool in_place =
        layer > 0 && layer < first_kept_;  // chunk by chunk over the input that nobody needs again
    if (in_place) {
      output = std::move(inputs_[layer]);
    } else {
      const MemoryScope scope("layer inputs");
      output = at::empty({stream_.size(), model_.config().hidden_size},
                         at::TensorOptions().device(model_.device()).dtype(model_.dtype()));
    }
    KeyValueStream seen = keys_values(layer);
    const MemoryScope scope("chunk");
    for (int64_t i = 0; i < chunks(); ++i) {
      const Rows rows = chunk(i);
      seen.move_to(seen.first_seen_by(i));
      const at::Tensor x = in_place ? output.narrow(0, rows.begin, rows.size()) : input(layer, rows);
      const LayerOutput result = model_.layers()[layer].forward(x, rows, seen.before(rows));
      output.narrow(0, rows.begin, rows.size()).copy_(result.hidden);
      seen.store(rows, result.own);
    }
  }

  const Model& model_;
  const Stream& stream_;
  int64_t chunk_;
  int64_t first_kept_;
  std::vector<at::Tensor>
      inputs_;  // of each layer, [N, D]; the last one is the head's. The first is never held.
};

/// The layers' backward pass over what a StreamedForward has kept.
class StreamedBackward {
 public:
  StreamedBackward(const Pass& pass, StreamedForward& forward, at::Tensor gradient)
      : model_(pass.model), forward_(forward), gradient_(std::move(gradient)) {}

  void run() {
    const int64_t lowest = model_.lowest_trainable_layer();
    for (auto layer = static_cast<int64_t>(model_.layers().size()) - 1; layer >= std::max<int64_t>(lowest, 0);
         --layer) {
      backward(layer, /*to_embedding=*/lowest < 0);
      forward_.drop_input(layer);
    }
  }

 private:
  void backward(int64_t layer, bool to_embedding) {
    const DecoderLayer& decoder = model_.layers()[layer];
    KeyValueStream seen = forward_.keys_values(layer);
    const MemoryScope scope("chunk");
    const int64_t last = forward_.chunks() - 1;
    const auto see = [&](int64_t index) {
      const Rows rows = forward_.chunk(index);
      seen.store(rows, decoder.keys_values(forward_.input(layer, rows), rows));
    };
    int64_t first = seen.first_seen_by(last);
    seen.move_to(first);
    for (int64_t i = first; i < last; ++i) see(i);
    seen.allocate_gradients();
    for (int64_t i = last; i >= 0; --i) {
      if (seen.first_seen_by(i) < first) {
        seen.move_to(--first);
        see(first);
      }
      const Rows rows = forward_.chunk(i);
      const at::Tensor dx = backward_chunk(decoder, forward_.input(layer, rows), rows, seen, i < last);
      if (layer > 0) {
        gradient_.narrow(0, rows.begin, rows.size()).copy_(dx);
      } else if (to_embedding) {
        model_.accumulate_embedding(forward_.tokens(rows), dx);
      }
    }
  }

  at::Tensor backward_chunk(const DecoderLayer& decoder, const at::Tensor& x, const Rows& rows,
                            const KeyValueStream& seen, bool seen_later) {
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = x.detach().requires_grad_();
    LayerOutput output = decoder.forward(leaf, rows, seen.before(rows));
    std::vector<at::Tensor> roots{output.hidden};
    std::vector<at::Tensor> gradients{gradient_.narrow(0, rows.begin, rows.size())};
    if (seen_later) {
      const KeysValues received = seen.received(rows);
      roots.insert(roots.end(), {output.own.keys, output.own.values});
      gradients.insert(gradients.end(), {received.keys, received.values});
    }
    output = {};
    return torch::autograd::grad(roots, {leaf}, gradients).front();
  }

  Model& model_;
  StreamedForward& forward_;
  at::Tensor gradient_;  // [N, D]: of the current layer's output; each chunk replaces its rows by its input's
};

}  // namespace

HeadOutcome run_streambp(const Pass& pass) {
  StreamedForward forward(pass.model, pass.stream, pass.chunk, pass.model.lowest_trainable_layer());
  forward.run();
  pass.close_forward();
  HeadOutcome outcome;
  at::Tensor gradient = head_gradient(pass, forward.take_hidden(), outcome);
  StreamedBackward(pass, forward, std::move(gradient)).run();
  return outcome;
}

at::Tensor streamed_hidden_states(Model& model, const Stream& stream, int64_t chunk) {
  const at::NoGradGuard no_grad;
  StreamedForward forward(model, stream, chunk, static_cast<int64_t>(model.layers().size()));
  forward.run();
  return forward.take_hidden();
}

}  // namespace streambp
