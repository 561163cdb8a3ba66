#include "streambp/backprop/streamed/streamed_forward.h"

#include <utility>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/model/weight_provider.h"

namespace streambp {
StreamedForward::StreamedForward(const Model& model, const Stream& stream, int64_t chunk, const Keep& keep,
                                 StreamPart* part)
    : model_(model),
      stream_(stream),
      part_(part),
      chunks_(stream, chunk, model.device(), part),
      keep_(keep),
      copies_(keep.offload == Offload::kHost ? std::make_shared<HostCopies>(model.device()) : nullptr),
      inputs_(model.layers().size() + 1) {
  for (size_t layer = 0; layer < model.layers().size(); ++layer)
    kept_.emplace_back(keep_.activations_on_host(static_cast<int64_t>(layer)) ? copies_ : nullptr);
}

void StreamedForward::run(int64_t end) {
  for (int64_t layer = 0; layer < end; ++layer) forward(layer);
}

void StreamedForward::expect_input(int64_t layer, const Rows& rows) const {
  if (inputs_[layer].defined()) inputs_[layer].expect(rows.begin, rows.end);
}

at::Tensor StreamedForward::input(int64_t layer, const Rows& rows) const {
  const bool looks_up = layer == 0 && !inputs_.front().defined();
  return looks_up ? model_.embed(chunks_.tokens(rows)) : inputs_[layer].rows(rows.begin, rows.end);
}

at::Tensor StreamedForward::run_alone(int64_t layer) {
  forward(layer);
  return inputs_[layer + 1].take();
}

at::Tensor StreamedForward::gradient_room(int64_t layer) const {
  if (part_ == nullptr && layer > 0 && !inputs_[layer].on_host())
    return inputs_[layer].rows(0, stream_.size());
  const MemoryScope scope("layer inputs");
  return at::empty({stream_.size(), model_.config().residual_width()},
                   at::TensorOptions().device(model_.device()).dtype(model_.dtype()));
}

void StreamedForward::drop(int64_t layer) {
  inputs_[layer].reset();
  kept_[layer].reset();
  if (stream_.shared != nullptr) stream_.shared->drop(layer);
  if (stream_.picks != nullptr) stream_.picks->drop(layer);
}

bool StreamedForward::is_kept(int64_t layer) const {
  return keeps_input(layer, keep_.first, static_cast<int64_t>(model_.layers().size()), keep_.every);
}

void StreamedForward::allocate_input(int64_t layer) {
  const MemoryScope scope("layer inputs");
  const bool is_head = layer == static_cast<int64_t>(model_.layers().size());
  inputs_[layer] = StreamBuffer({stream_.size(), model_.config().residual_width()},
                                at::TensorOptions().device(model_.device()).dtype(model_.dtype()),
                                is_head || !keep_.inputs_on_host() ? nullptr : copies_);
}

void StreamedForward::forward(int64_t layer) {
  const Span layer_span("layer {} forward", layer);
  const auto head = static_cast<int64_t>(model_.layers().size());
  const LayerWeights weights(model_, layer, after_forward(layer));
  // Chunk by chunk over the input, where it is not needed again; the head's input is on the device.
  const bool in_place = layer > 0 && !is_kept(layer) && (layer + 1 < head || !keep_.inputs_on_host());
  if (!in_place) allocate_input(layer + 1);
  const StreamBuffer& output = inputs_[in_place ? layer : layer + 1];
  const MemoryScope scope("chunk");
  Attending attending = begin(layer, /*keep=*/true);
  for (size_t step = 0; step < chunks_.to_run().size(); ++step) {
    const int64_t i = chunks_.to_run()[step];
    const Span chunk_span("chunk {}", i);
    const Rows rows = chunks_.rows(i);
    const at::Tensor x = input(layer, rows);
    if (step + 1 < chunks_.to_run().size()) expect_input(layer, chunks_.rows(chunks_.to_run()[step + 1]));
    LayerOutput result = run_chunk(attending, layer, i, x, layer_run(layer), {});
    if (!keeps(keep_.activations.attention, layer)) result.activations.attention = {};
    settle();
    kept_[layer].store(rows, result.activations, stream_.size());
    output.store(rows.begin, result.hidden);
  }
  if (attending.seen != nullptr) attending.seen->end();
  settle();
  if (in_place) inputs_[layer + 1] = std::move(inputs_[layer]);
  if (layer > 0 && !in_place && !is_kept(layer)) inputs_[layer].reset();
}

void StreamedForward::rebuild_input(int64_t layer) {
  for (int64_t from = rebuilt_from(layer); from < layer; ++from) forward_again(from);
}

int64_t StreamedForward::rebuilt_from(int64_t layer) const {
  while (layer > 0 && !inputs_[layer].defined()) --layer;
  return layer;
}

std::optional<int64_t> StreamedForward::after_forward(int64_t layer) const {
  const auto head = static_cast<int64_t>(model_.layers().size());
  if (layer + 1 < head) return layer + 1;
  return keep_.first < head ? std::optional(layer) : std::nullopt;
}

void StreamedForward::forward_again(int64_t layer) {
  const Span span("layer {} forward again", layer);
  const LayerWeights weights(model_, layer, layer + 1);
  allocate_input(layer + 1);
  const DecoderLayer& decoder = model_.layers()[layer];
  const KeptActivations& kept = kept_[layer];
  // What a layer adds of n-grams before its first half reads earlier rows.
  const bool needs_attention = !kept.replaces_attention() || model_.config().ngrams.are_in(layer);
  const MemoryScope scope("chunk");
  Attending attending;
  if (needs_attention) attending = begin(layer, /*keep=*/false);
  const LayerRun run{.balance = stream_.balance.get(), .choices = stream_.choices.get()};
  kept.expect(chunks_.rows(chunks_.to_run().front()));
  for (size_t step = 0; step < chunks_.to_run().size(); ++step) {
    const int64_t i = chunks_.to_run()[step];
    const Rows rows = chunks_.rows(i);
    const at::Tensor x = input(layer, rows);
    Activations known = kept.rows(rows);
    if (step + 1 < chunks_.to_run().size()) {
      const Rows next = chunks_.rows(chunks_.to_run()[step + 1]);
      expect_input(layer, next);
      kept.expect(next);
    }
    if (needs_attention) {
      const LayerOutput result = run_chunk(attending, layer, i, x, run, std::move(known));
      settle();
      inputs_[layer + 1].store(rows.begin, result.hidden);
    } else {
      const at::Tensor hidden = decoder.after_attention(x, std::move(known), rows, run).hidden;
      settle();
      inputs_[layer + 1].store(rows.begin, hidden);
    }
  }
  if (attending.seen != nullptr) attending.seen->end();
  settle();
}

StreamedForward::Attending StreamedForward::begin(int64_t layer, bool keep) {
  if (const auto apart = attention_of(layer)) {
    const StreamHeads all = heads(layer, keep);
    const Span span("attention");
    return {nullptr, apart->forward(all.queries, all.own, /*goes_back=*/false)};
  }
  Attending attending{carry_stream_of(layer), {}};
  CarryStream& seen = *attending.seen;
  if (seen.needs_all()) {
    for (const int64_t i : chunks_.to_run()) {
      const Span span("keys and values of chunk {}", i);
      const Rows rows = chunks_.rows(i);
      const KeysValues own = model_.layers()[layer].keys_values(input(layer, rows), rows);
      seen.store(rows, {.attention = own, .recurrent = {}});
    }
  }
  seen.begin();
  return attending;
}

LayerOutput StreamedForward::run_chunk(Attending& attending, int64_t layer, int64_t index,
                                       const at::Tensor& x, const LayerRun& run, Activations known) const {
  const DecoderLayer& decoder = model_.layers()[layer];
  const Rows rows = chunks_.rows(index);
  if (attending.seen == nullptr) {
    known.attention = attended_by(rows, attending.result);
    return decoder.after_attention(x, std::move(known), rows, run);
  }
  CarryStream& seen = *attending.seen;
  seen.move_to(seen.first_seen_by(index));
  LayerOutput result = decoder.forward(x, rows, seen.before(rows), run, std::move(known));
  seen.store(rows, result.own);
  return result;
}

StreamHeads StreamedForward::heads(int64_t layer, bool keep) {
  const DecoderLayer& decoder = model_.layers()[layer];
  const LayerRun kept = layer_run(layer);
  const LayerRun run{.keeps_queries = keep && kept.keeps_queries,
                     .keeps_projected = keep && kept.keeps_projected};
  StreamHeads all;
  const auto put = [&](at::Tensor& whole, const Rows& rows, const at::Tensor& of_rows) {
    if (!whole.defined()) {
      const MemoryScope scope("attention rows");
      whole = at::empty({stream_.size(), of_rows.size(1), of_rows.size(2)}, of_rows.options());
    }
    whole.narrow(0, rows.begin, rows.size()).copy_(of_rows);
  };
  for (size_t step = 0; step < chunks_.to_run().size(); ++step) {
    const Rows rows = chunks_.rows(chunks_.to_run()[step]);
    const Span span("queries, keys and values of chunk {}", chunks_.to_run()[step]);
    Activations known = keep ? Activations{} : kept_[layer].of_heads(rows);
    const at::Tensor x = input(layer, rows);
    if (step + 1 < chunks_.to_run().size()) expect_input(layer, chunks_.rows(chunks_.to_run()[step + 1]));
    const AttentionHeads of_rows = decoder.attention_heads(x, rows, run, known);
    put(all.queries, rows, of_rows.queries);
    put(all.own.keys, rows, of_rows.own.keys);
    put(all.own.values, rows, of_rows.own.values);
    settle();
    kept_[layer].store(rows, known, stream_.size());  // nothing, unless the run keeps them
  }
  return all;
}

bool StreamedForward::keeps(int64_t count, int64_t layer) const {
  return layer >= keep_.first && keeps_of(count, layer, static_cast<int64_t>(model_.layers().size()));
}

LayerRun StreamedForward::layer_run(int64_t layer) const {
  const Config& config = model_.config();
  return {
      .balance = stream_.balance.get(),
      .choices = stream_.choices.get(),
      .router = stream_.router,
      .keeps_queries = keeps(keep_.activations.queries, layer) && config.can_store_attention(layer),
      .keeps_projected = keeps(keep_.activations.keys_values, layer) && config.can_store_keys_values(layer),
      .keeps_attention_half = keeps(keep_.activations.attention_half, layer),
      .keeps_projections = keeps(keep_.activations.gate_up, layer)};
}

void StreamedForward::settle() const {
  if (copies_ != nullptr) copies_->settle();
}

}  // namespace streambp
