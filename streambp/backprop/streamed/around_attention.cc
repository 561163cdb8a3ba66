// A layer's backward pass where somebody else takes its attention, of all rows at once (PartAttention).
//
// Attention takes queries, keys and values of a row and gives its output: what precedes them and what follows
// it goes token by token, and is run chunk by chunk as everything else. The chain rule meets at the input,
// which both halves read; their gradients add up.
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
namespace {

/// The chunks from last to first, as body(index, rows), copies of the next one's input begun.
template <typename Body>
void for_each_chunk(const StreamedForward& forward, int64_t layer, const std::vector<int64_t>& to_run,
                    Body body) {
  for (auto step = to_run.rbegin(); step != to_run.rend(); ++step) {
    const Rows rows = forward.chunks().rows(*step);
    forward.expect_input(layer, rows);
    if (const auto next = std::next(step); next != to_run.rend())
      forward.expect_input(layer, forward.chunks().rows(*next));
    body(*step, rows);
  }
}

}  // namespace

void backward_around_attention(const Model& model, StreamedForward& forward, int64_t layer,
                               const LayerRun& layer_run, const std::vector<int64_t>& to_run,
                               const at::Tensor& gradient, StreamedHead* head, PartAttention& attention) {
  const DecoderLayer& decoder = model.layers()[layer];
  const KeptActivations& kept = forward.kept(layer);
  const MemoryScope scope("chunk");
  StreamHeads all = forward.heads(layer);
  const int64_t tokens = all.queries.size(0);
  AttentionBlock attended = kept.attention(tokens);
  if (!attended.output.defined()) {
    const Span span("attention");
    attended = attention.forward(all.queries, all.own, /*goes_back=*/true);
  }
  at::Tensor of_attended;
  {
    const MemoryScope of_rows("attention rows");
    of_attended = at::zeros(attended.output.sizes(), attended.output.options());
  }
  const auto of_chunk = [](const Rows& rows, const at::Tensor& x) {
    return x.narrow(0, rows.begin, rows.size());
  };
  for_each_chunk(forward, layer, to_run, [&](int64_t index, const Rows& rows) {
    const Span span("chunk {}", index);
    Activations known = kept.rows(rows);
    known.attention = attended_by(rows, attended);
    LayerChunk run(decoder, forward.input(layer, rows), rows, of_chunk(rows, of_attended), layer_run,
                   std::move(known));
    at::Tensor of_output = of_chunk(rows, gradient);
    if (head != nullptr) head->run(rows.begin, of_output = run.hidden());
    of_chunk(rows, gradient).copy_(run.backward(of_output, {}));
  });
  AttentionBlockGradients of_heads;
  {
    const Span span("attention backward");
    of_heads = attention.backward(of_attended, attended, all.queries, all.own);
  }
  all = {};
  attended = {};
  of_attended.reset();
  for_each_chunk(forward, layer, forward.chunks().to_run(), [&](int64_t index, const Rows& rows) {
    const Span span("queries, keys and values of chunk {} backward", index);
    const at::AutoGradMode with_grad(true);
    const at::Tensor leaf = forward.input(layer, rows).detach().requires_grad_();
    Activations known = kept.of_heads(rows);
    const AttentionHeads heads = decoder.attention_heads(leaf, rows, {}, known);
    const auto rounded = [&](const at::Tensor& sums) { return of_chunk(rows, sums).to(leaf.scalar_type()); };
    const at::Tensor of_input =
        torch::autograd::grad(
            {heads.queries, heads.own.keys, heads.own.values}, {leaf},
            {rounded(of_heads.d_queries), rounded(of_heads.d_keys), rounded(of_heads.d_values)})
            .front();
    of_chunk(rows, gradient).add_(of_input);
  });
}

}  // namespace streambp
