#include "streambp/backprop/streamed_forward.h"

#include <utility>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"

namespace streambp {
StreamedForward::StreamedForward(const Model& model, const Stream& stream, int64_t chunk, const Keep& keep)
    : model_(model),
      stream_(stream),
      chunks_(stream, chunk, model.device()),
      keep_(keep),
      copies_(keep.offload == Offload::kHost ? std::make_shared<HostCopies>(model.device()) : nullptr),
      inputs_(model.layers().size() + 1),
      outputs_(model.layers().size()),
      log_sum_exps_(model.layers().size()) {}

void StreamedForward::run(int64_t end) {
  for (int64_t layer = 0; layer < end; ++layer) forward(layer);
}

void StreamedForward::expect_input(int64_t layer, const Rows& rows) const {
  if (layer > 0 && inputs_[layer].defined()) inputs_[layer].expect(rows.begin, rows.end);
}

void StreamedForward::expect_attended(int64_t layer, const Rows& rows) const {
  if (!outputs_[layer].defined()) return;
  outputs_[layer].expect(rows.begin, rows.end);
  log_sum_exps_[layer].expect(rows.begin, rows.end);
}

at::Tensor StreamedForward::input(int64_t layer, const Rows& rows) const {
  return layer == 0 ? model_.embed(chunks_.tokens(rows)) : inputs_[layer].rows(rows.begin, rows.end);
}

AttentionBlock StreamedForward::attended(int64_t layer, const Rows& rows) const {
  if (!outputs_[layer].defined()) return {};
  return {outputs_[layer].rows(rows.begin, rows.end), log_sum_exps_[layer].rows(rows.begin, rows.end)};
}

at::Tensor StreamedForward::gradient_room(int64_t layer) const {
  if (layer > 0 && !inputs_[layer].on_host()) return inputs_[layer].rows(0, stream_.size());
  const MemoryScope scope("layer inputs");
  return at::empty({stream_.size(), model_.config().hidden_size},
                   at::TensorOptions().device(model_.device()).dtype(model_.dtype()));
}

void StreamedForward::drop(int64_t layer) {
  inputs_[layer].reset();
  outputs_[layer].reset();
  log_sum_exps_[layer].reset();
}

bool StreamedForward::is_kept(int64_t layer) const {
  return keeps_input(layer, keep_.first, static_cast<int64_t>(model_.layers().size()), keep_.every);
}

void StreamedForward::allocate_input(int64_t layer) {
  const MemoryScope scope("layer inputs");
  const bool is_head = layer == static_cast<int64_t>(model_.layers().size());
  inputs_[layer] = StreamBuffer({stream_.size(), model_.config().hidden_size},
                                at::TensorOptions().device(model_.device()).dtype(model_.dtype()),
                                is_head ? nullptr : copies_);
}

void StreamedForward::forward(int64_t layer) {
  const Span layer_span("layer {} forward", layer);
  const auto head = static_cast<int64_t>(model_.layers().size());
  // Chunk by chunk over the input, where it is not needed again; the head's input is on the device.
  const bool in_place = layer > 0 && !is_kept(layer) && (layer + 1 < head || keep_.offload == Offload::kNone);
  if (!in_place) allocate_input(layer + 1);
  const StreamBuffer& output = inputs_[in_place ? layer : layer + 1];
  KeyValueStream seen = keys_values(layer);
  const MemoryScope scope("chunk");
  for (size_t step = 0; step < chunks_.to_run().size(); ++step) {
    const int64_t i = chunks_.to_run()[step];
    const Span chunk_span("chunk {}", i);
    const Rows rows = chunks_.rows(i);
    seen.move_to(seen.first_seen_by(i));
    const at::Tensor x = input(layer, rows);
    if (step + 1 < chunks_.to_run().size()) expect_input(layer, chunks_.rows(chunks_.to_run()[step + 1]));
    const LayerOutput result = model_.layers()[layer].forward(x, rows, seen.before(rows), layer_run());
    seen.store(rows, result.own);
    if (keep_.attention && layer >= keep_.first) keep_attention(layer, rows, result.attended);
    output.store(rows.begin, result.hidden);
  }
  settle();
  if (in_place) inputs_[layer + 1] = std::move(inputs_[layer]);
  if (layer > 0 && !in_place && !is_kept(layer)) inputs_[layer].reset();
}

void StreamedForward::keep_attention(int64_t layer, const Rows& rows, const AttentionBlock& attended) {
  if (!outputs_[layer].defined()) {
    const MemoryScope scope("attention outputs");
    const auto buffer = [&](const at::Tensor& of) {
      std::vector<int64_t> shape = of.sizes().vec();
      shape.front() = stream_.size();
      return StreamBuffer(shape, of.options(), copies_);
    };
    outputs_[layer] = buffer(attended.output);
    log_sum_exps_[layer] = buffer(attended.log_sum_exp);
  }
  outputs_[layer].store(rows.begin, attended.output);
  log_sum_exps_[layer].store(rows.begin, attended.log_sum_exp);
}

void StreamedForward::rebuild_input(int64_t layer) {
  if (layer == 0 || inputs_[layer].defined()) return;
  int64_t from = layer;
  while (from > 0 && !inputs_[from].defined()) --from;
  for (; from < layer; ++from) forward_again(from);
}

void StreamedForward::forward_again(int64_t layer) {
  const Span span("layer {} forward again", layer);
  allocate_input(layer + 1);
  const DecoderLayer& decoder = model_.layers()[layer];
  const bool needs_attention = !outputs_[layer].defined();
  KeyValueStream seen = needs_attention ? keys_values(layer) : KeyValueStream{};
  const MemoryScope scope("chunk");
  if (!needs_attention) expect_attended(layer, chunks_.rows(chunks_.to_run().front()));
  for (size_t step = 0; step < chunks_.to_run().size(); ++step) {
    const int64_t i = chunks_.to_run()[step];
    const Rows rows = chunks_.rows(i);
    const at::Tensor x = input(layer, rows);
    const AttentionBlock known = attended(layer, rows);
    if (step + 1 < chunks_.to_run().size()) {
      const Rows next = chunks_.rows(chunks_.to_run()[step + 1]);
      expect_input(layer, next);
      expect_attended(layer, next);
    }
    if (needs_attention) {
      seen.move_to(seen.first_seen_by(i));
      const LayerOutput result = decoder.forward(x, rows, seen.before(rows), layer_run());
      seen.store(rows, result.own);
      inputs_[layer + 1].store(rows.begin, result.hidden);
    } else {
      inputs_[layer + 1].store(rows.begin, decoder.after_attention(x, known.output, rows, layer_run()));
    }
  }
  settle();
}

LayerRun StreamedForward::layer_run() const {
  return {.balance = stream_.balance.get()};
}

void StreamedForward::settle() const {
  if (copies_ != nullptr) copies_->settle();
}

}  // namespace streambp
