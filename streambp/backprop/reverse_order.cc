// Order::kReverse: one layer's backward pass, its chunks from last to first.
#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
namespace {

/// The carries of a layer's chunks, computed again as the backward pass asks for them.
class SeenAgain {
 public:
  SeenAgain(const Model& model, const StreamedForward& forward, int64_t layer)
      : decoder_(model.layers()[layer]),
        forward_(forward),
        layer_(layer),
        stream_(forward.carry_stream_of(layer, CarryStream::Holds::kBackward)) {}

  CarryStream& stream() { return *stream_; }

  void compute(int64_t index) {
    const Span span(decoder_.attends() ? "keys and values of chunk {}" : "state of chunk {}", index);
    const Rows rows = forward_.chunks().rows(index);
    Carry own;
    if (decoder_.is_recurrent())
      own = decoder_.state_after(forward_.input(layer_, rows), rows, stream_->before(rows));
    if (decoder_.attends() && !own.attention.keys.defined()) {
      const KeysValues projected = kept().projected(rows);
      const at::Tensor input = projected.keys.defined() ? at::Tensor() : forward_.input(layer_, rows);
      own.attention = decoder_.keys_values(input, rows, projected);
    }
    stream_->store(rows, own);
  }

  /// Tell that compute(index), or the chunk's run, comes soon: copies from the host begin.
  void expect(int64_t index) const {
    const Rows rows = forward_.chunks().rows(index);
    if (kept().has_projected()) {
      kept().expect_projected(rows);
    } else {
      forward_.expect_input(layer_, rows);
    }
  }
  void expect_chunk(int64_t index) const {
    const Rows rows = forward_.chunks().rows(index);
    forward_.expect_input(layer_, rows);
    kept().expect(rows);
  }

  /// All that the last chunk looks at. Returns the first chunk among it.
  int64_t begin(const std::vector<int64_t>& to_run) {
    const int64_t last = forward_.chunks().last();
    const int64_t first = stream_->first_seen_by(last);
    stream_->move_to(first);
    for (size_t step = 0; step < to_run.size(); ++step) {
      const int64_t i = to_run[step];
      if (i < first || i == last) continue;
      // The chunk after this one is seen next, the last one run.
      expect(i);
      if (to_run[step + 1] == last) {
        expect_chunk(last);
      } else {
        expect(to_run[step + 1]);
      }
      compute(i);
    }
    if (stream_->needs_all()) {
      compute(last);
      expect_chunk(last);
    }
    stream_->allocate_gradients();
    stream_->begin();
    return first;
  }

 private:
  const KeptActivations& kept() const { return forward_.kept(layer_); }

  const DecoderLayer& decoder_;
  const StreamedForward& forward_;
  int64_t layer_;
  std::unique_ptr<CarryStream> stream_;
};

/// The chain rule is linear: what chunks elsewhere have left for keys and values goes through their
/// projections alone, and is added to the gradient of the input, `sum` [N, D].
void add_from_elsewhere(const Model& model, const StreamedForward& forward, int64_t layer,
                        const std::vector<int64_t>& to_run, const CarryStream& seen, const at::Tensor& sum) {
  for (auto step = to_run.rbegin(); step != to_run.rend(); ++step) {
    const Rows rows = forward.chunks().rows(*step);
    const KeysValues left = seen.received(rows).attention;
    if (!left.keys.defined()) continue;
    const Span span("keys and values of chunk {} backward", *step);
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = forward.input(layer, rows).detach().requires_grad_();
    const KeysValues own = model.layers()[layer].keys_values(leaf, rows, forward.kept(layer).projected(rows));
    sum.narrow(0, rows.begin, rows.size())
        .add_(torch::autograd::grad({own.keys, own.values}, {leaf}, {left.keys, left.values}).front());
  }
}

}  // namespace

void backward_in_reverse(const Model& model, const StreamedForward& forward, int64_t layer,
                         const LayerRun& layer_run, const std::vector<int64_t>& to_run,
                         const at::Tensor& gradient, StreamedHead* head, const at::Tensor& of_input) {
  const Chunks& chunks = forward.chunks();
  const DecoderLayer& decoder = model.layers()[layer];
  const KeptActivations& kept = forward.kept(layer);
  const at::Tensor& of_inputs = of_input.defined() ? of_input : gradient;
  SeenAgain again(model, forward, layer);
  CarryStream& seen = again.stream();
  const MemoryScope scope("chunk");
  int64_t first = again.begin(to_run);
  for (auto step = to_run.rbegin(); step != to_run.rend(); ++step) {
    const int64_t i = *step;
    const Span chunk_span("chunk {}", i);
    if (seen.first_seen_by(i) < first) {
      // One chunk further left, or as far as chunks have been left out.
      seen.move_to(first = seen.first_seen_by(i));
      again.compute(first);
    }
    const Rows rows = chunks.rows(i);
    const at::Tensor input = forward.input(layer, rows);
    Activations known = kept.rows(rows);
    if (const auto next = std::next(step); next != to_run.rend()) {
      const int64_t seen_next = seen.first_seen_by(*next);
      if (seen_next < first) again.expect(seen_next);
      again.expect_chunk(*next);
    }
    LayerChunk run(decoder, input, rows, seen.before(rows), layer_run, std::move(known));
    const auto of_chunk = [&rows](const at::Tensor& all) { return all.narrow(0, rows.begin, rows.size()); };
    at::Tensor of_output = of_chunk(gradient);
    if (head != nullptr) head->run(rows.begin, of_output = run.hidden());
    of_chunk(of_inputs).copy_(run.backward(of_output, seen.received(rows)));
  }
  if (seen.end()) add_from_elsewhere(model, forward, layer, to_run, seen, of_inputs);
}

}  // namespace streambp
