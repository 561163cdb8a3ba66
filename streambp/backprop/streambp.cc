// StreamBP (arXiv 2506.03077): each layer's chain rule streamed over chunks of the sequence, here from last
// to first.
//
// A chunk's rows reach later rows only through their keys and values. Taken last to first, a chunk's keys and
// values have received all the gradient they will get before the chunk itself is run, so one backward call
// with three roots (output, keys, values) finishes it, and nothing is computed twice but one layer's key and
// value projections.
#include <algorithm>

#include "streambp/backprop/layer_chunk.h"
#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed_forward.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp {
namespace {

/// Where an optimizer uses gradients up: gives `parameters` theirs.
void begin_gradients(const Pass& pass, const std::vector<Parameter*>& parameters) {
  if (pass.optimizer != nullptr) pass.model.allocate_gradients(parameters);
}

/// Takes the step of `parameters` and frees their gradients.
void use_gradients(const Pass& pass, const std::vector<Parameter*>& parameters) {
  if (pass.optimizer == nullptr) return;
  for (Parameter* parameter : parameters) {
    parameter->deferred = true;  // stays trainable without the gradient that the step uses up
    pass.optimizer->step(*parameter);
    parameter->gradient.reset();
  }
  pass.model.defer_gradients(parameters);
}

/// The layers' backward pass over what a StreamedForward has kept.
class StreamedBackward {
 public:
  StreamedBackward(const Pass& pass, StreamedForward& forward, at::Tensor gradient)
      : pass_(pass), model_(pass.model), forward_(forward), gradient_(std::move(gradient)) {}

  void run() {
    const int64_t lowest = model_.lowest_trainable_layer();
    for (auto layer = static_cast<int64_t>(model_.layers().size()) - 1; layer >= std::max<int64_t>(lowest, 0);
         --layer) {
      forward_.rebuild_input(layer);
      // Looked up only where they are used up: a mixture has thousands.
      std::vector<Parameter*> parameters;
      if (pass_.optimizer != nullptr) parameters = model_.layer_parameters(layer);
      begin_gradients(pass_, parameters);
      if (layer == 0) begin_gradients(pass_, model_.embedding_parameters());
      const Span span("layer {} backward", layer);
      if (pass_.order == Order::kForward) {
        backward_in_order(pass_, forward_, layer, gradient_);
      } else {
        backward(layer);
      }
      use_gradients(pass_, parameters);
      forward_.drop(layer);
    }
    if (lowest >= 0) return;
    const Chunks& chunks = forward_.chunks();
    for (const int64_t i : chunks.to_run()) {
      const Rows rows = chunks.rows(i);
      model_.accumulate_embedding(chunks.tokens(rows), gradient_of(rows));
    }
    use_gradients(pass_, model_.embedding_parameters());
  }

 private:
  void backward(int64_t layer) {
    const Chunks& chunks = forward_.chunks();
    const DecoderLayer& decoder = model_.layers()[layer];
    KeyValueStream seen = forward_.keys_values(layer);
    const MemoryScope scope("chunk");
    const int64_t last = chunks.last();
    const auto see = [&](int64_t index) {
      const Span span("keys and values of chunk {}", index);
      const Rows rows = chunks.rows(index);
      seen.store(rows, decoder.keys_values(forward_.input(layer, rows), rows));
    };
    int64_t first = seen.first_seen_by(last);
    seen.move_to(first);
    for (const int64_t i : chunks.to_run()) {
      if (i >= first && i < last) see(i);
    }
    seen.allocate_gradients();
    for (auto place = chunks.to_run().rbegin(); place != chunks.to_run().rend(); ++place) {
      const int64_t i = *place;
      const Span chunk_span("chunk {}", i);
      if (seen.first_seen_by(i) < first) {
        // One chunk further left, or as far as chunks have been left out.
        seen.move_to(first = seen.first_seen_by(i));
        see(first);
      }
      const Rows rows = chunks.rows(i);
      LayerChunk run(decoder, forward_.input(layer, rows), rows, seen.before(rows),
                     forward_.attended(layer, rows));
      const at::Tensor gradient = gradient_of(rows);
      gradient.copy_(run.backward(gradient, i < last ? seen.received(rows) : KeysValues{}));
    }
  }

  at::Tensor gradient_of(const Rows& rows) const { return gradient_.narrow(0, rows.begin, rows.size()); }

  const Pass& pass_;
  Model& model_;
  StreamedForward& forward_;
  at::Tensor gradient_;  // [N, D]: of the current layer's output; each chunk replaces its rows by its input's
};

}  // namespace

HeadOutcome run_streambp(const Pass& pass) {
  StreamedForward forward(pass.model, pass.stream, pass.chunk, pass.keep);
  forward.run();
  pass.close_forward();
  // A head that is the embedding has its gradient only when the embedding has it.
  std::vector<Parameter*> of_head = pass.model.head_parameters();
  begin_gradients(pass, of_head);
  HeadOutcome outcome;
  at::Tensor gradient = head_gradient(pass, forward.take_hidden(), outcome);
  for (Parameter* embedding : pass.model.embedding_parameters()) std::erase(of_head, embedding);
  use_gradients(pass, of_head);
  StreamedBackward(pass, forward, std::move(gradient)).run();
  return outcome;
}

at::Tensor streamed_hidden_states(Model& model, const Stream& stream, int64_t chunk) {
  const at::NoGradGuard no_grad;
  Keep nothing;
  nothing.first = static_cast<int64_t>(model.layers().size());
  StreamedForward forward(model, stream, chunk, nothing);
  forward.run();
  return forward.take_hidden();
}

}  // namespace streambp
