// Tiled back-propagation: mini-sequence training (MsT, arXiv 2407.15892) and ALST's TiledMLP and tiled loss
// (arXiv 2506.13996).
//
// Gradient checkpointing in which nothing but attention is ever as long as the stream: an MLP and the LM head
// look at one token alone, so that they are run on a tile of tokens at a time, forward, and forward and
// backward once more when their layer's turn comes. Queries, keys, values and attention's output stay whole.
#include "streambp/backprop/passes.h"
#include "streambp/backprop/streamed/chunks.h"
#include "streambp/backprop/streamed/layer_chunk.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
namespace {

/// Calls body(rows) for the tiles of the stream that are to be run.
template <typename Body>
void for_each_tile(const Chunks& tiles, Body body) {
  for (const int64_t i : tiles.to_run()) {
    const Span span("tile {}", i);
    body(tiles.rows(i));
  }
}

at::Tensor rows_of(const at::Tensor& stream, const Rows& rows) {
  return stream.narrow(0, rows.begin, rows.size());
}

at::Tensor forward(const Pass& pass, const Chunks& tiles, const DecoderLayer& layer, const at::Tensor& hidden,
                   const Before& before, Carry& own) {
  const at::Tensor output = at::empty_like(hidden);
  const MemoryScope scope("chunk");
  const at::Tensor middle = layer.attention_half(hidden, pass.all_rows(), before, pass.layer_run(), own);
  for_each_tile(tiles, [&](const Rows& rows) {
    rows_of(output, rows)
        .copy_(layer.feed_forward(rows_of(middle, rows), rows_of(hidden, rows), rows, pass.layer_run()));
  });
  return output;
}

at::Tensor backward(const Pass& pass, const Chunks& tiles, const DecoderLayer& layer, const at::Tensor& leaf,
                    const at::Tensor& gradient, Before before, const Carry& received) {
  Rows all = pass.all_rows();
  OtherInputs keys_values(all, before);
  Carry own;
  const at::Tensor middle = layer.attention_half(leaf, all, before, pass.layer_run(), own);
  const at::Tensor of_input = layer.is_parallel() ? at::zeros_like(gradient) : at::Tensor();
  {
    const MemoryScope scope("chunk");
    for_each_tile(tiles, [&](Rows rows) {
      const at::Tensor tile = rows_of(middle.detach(), rows).requires_grad_();
      Before nothing;
      OtherInputs others(rows, nothing);
      at::Tensor input = rows_of(leaf.detach(), rows);
      if (of_input.defined()) others.add(input, rows_of(of_input, rows));
      const at::Tensor output = layer.feed_forward(tile, input, rows, pass.layer_run(/*graph_only=*/true));
      // The gradient of the MLP's input is written over that of its output, tile by tile.
      const at::Tensor of_tile = rows_of(gradient, rows);
      of_tile.copy_(others.backward(output, {}, tile, of_tile, {}));
    });
  }
  // Added first, as without tiles: to the last bit the same sum.
  if (of_input.defined()) keys_values.add_root(leaf.view_as(leaf), of_input);
  return keys_values.backward(middle, own, leaf, gradient, received);
}

}  // namespace

HeadOutcome run_tiled(const Pass& pass) {
  const Chunks tiles(pass.stream, pass.chunk, pass.model.device());
  return run_by_layers(
      pass,
      [&](const DecoderLayer& layer, const at::Tensor& hidden, const Before& before, Carry& own) {
        return forward(pass, tiles, layer, hidden, before, own);
      },
      [&](const DecoderLayer& layer, const at::Tensor& leaf, const at::Tensor& gradient, const Before& before,
          const Carry& received) { return backward(pass, tiles, layer, leaf, gradient, before, received); });
}

}  // namespace streambp
