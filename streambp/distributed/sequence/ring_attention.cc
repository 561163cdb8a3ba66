#include "streambp/distributed/sequence/ring_attention.h"

#include <algorithm>

#include "streambp/backprop/streamed/key_values.h"
#include "streambp/distributed/sequence/exchanged_keys_values.h"
#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

RingAttention::RingAttention(Communicator& communicator, const RowsOfRank& rows, const RowRoutes& routes,
                             const Chunks& chunks, const AttentionSettings& settings)
    : communicator_(communicator), rows_(rows), routes_(routes), settings_(settings) {
  for (const int64_t i : chunks.to_run()) {  // in a dry run the one that sees the most stands for its kind
    const Rows chunk = chunks.rows(i);
    const Piece first = rows.in_whole(chunk.begin, chunk.begin + 1).front();
    const int64_t seen = first_seen(first.begin, first.sequence_begin, settings.window);
    const RowRange earlier{seen, first.begin};
    Part part{chunk.begin, chunk.offsets, first.begin, seen, 0};
    for (const RowRange& own : shared_rows(rows_of(rows.all()), {earlier})) {
      const bool is_right_before =
          own.end == first.begin && rows.index_of(own.begin) + own.size() == chunk.begin;
      if (is_right_before) part.right_before = own.size();
    }
    parts_.push_back(std::move(part));
  }
}

template <typename Body>
void RingAttention::for_each_viewer(const RowRange& range, const Prefix& block, Body body) const {
  for (const Part& part : parts_) {
    const RowRange seen{std::max(range.begin, part.first_seen),
                        std::min(range.end, part.whole_begin - part.right_before)};
    if (seen.size() <= 0) continue;
    const auto rows = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, seen.begin - range.begin, seen.size()) : x;
    };
    body(part, EarlierTokens{{rows(block.keys), rows(block.values), rows(block.key_gradients),
                              rows(block.value_gradients)},
                             seen.begin - part.whole_begin});
  }
}

template <typename Body>
void RingAttention::for_each_own_viewer(const Prefix& own, Body body) const {
  for (const RowRange& range : rows_of(rows_.all())) {
    const auto rows = [&](const at::Tensor& x) { return x.defined() ? rows_.own_in(x, range) : x; };
    for_each_viewer(
        range, {rows(own.keys), rows(own.values), rows(own.key_gradients), rows(own.value_gradients)}, body);
  }
}

std::vector<RowExchange> RingAttention::exchanges(const KeysValues& own) const {
  return row_exchanges(communicator_.rank(), routes_.lent(), routes_.seen(), rows_of_message(own));
}

Prefix RingAttention::receive(const RowExchange& message, const KeysValues& own) {
  const MemoryScope scope("keys and values");
  Prefix block;
  const auto exchange = [&](const at::Tensor& x, at::Tensor& coming) {
    coming = at::empty({message.received.size(), x.size(1), x.size(2)}, x.options());
    communicator_.send_receive(rows_.own_in(x, message.sent), message.to, coming, message.from);
  };
  exchange(own.keys, block.keys);
  exchange(own.values, block.values);
  return block;
}

AttentionBlock RingAttention::forward(const at::Tensor& queries, const KeysValues& own, bool /*goes_back*/) {
  const at::ScalarType wide = sum_dtype(queries);
  AttentionBlock all;
  {
    const MemoryScope scope("attention rows");
    all = {at::empty(queries.sizes(), queries.options().dtype(wide)),
           at::empty({queries.size(0), queries.size(1)}, queries.options().dtype(wide))};
  }
  for (const Part& part : parts_) {
    const Prefix before{part.before_in(own.keys), part.before_in(own.values), {}, {}};
    const AttentionBlock block =
        attention_forward(part.of(queries), part.of(own.keys), part.of(own.values), part.offsets,
                          part.right_before > 0 ? before : Prefix{}, settings_);
    part.of(all.output).copy_(wide_output(block));
    part.of(all.log_sum_exp).copy_(block.log_sum_exp);
  }
  const auto look = [&](const Part& part, const EarlierTokens& tokens) {
    AttentionBlock rows{part.first_of(all.output), part.first_of(all.log_sum_exp)};
    attend_earlier(rows, part.first_of(queries), tokens, settings_);
  };
  for_each_own_viewer({own.keys, own.values, {}, {}}, look);
  for (const RowExchange& message : exchanges(own)) {
    const Prefix block = receive(message, own);
    for_each_viewer(message.received, block, look);
  }
  if (settings_.sinks != nullptr) add_sinks(all, settings_.sinks->value);
  const MemoryScope scope("attention rows");
  round_output(all, queries.scalar_type(), reads_remainder(queries, settings_.scoring));
  return all;
}

AttentionBlockGradients RingAttention::backward(const at::Tensor& d_output, const AttentionBlock& result,
                                                const at::Tensor& queries, const KeysValues& own) {
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(sum_dtype(like)));
  };
  AttentionBlockGradients sums;
  {
    const MemoryScope scope("key and value gradients");
    sums.d_keys = zeros(own.keys);
    sums.d_values = zeros(own.values);
  }
  {
    const MemoryScope scope("attention rows");
    sums.d_queries = zeros(queries);
  }
  if (settings_.sinks != nullptr) accumulate_sinks(*settings_.sinks, d_output, result);
  for (const Part& part : parts_) {
    const Prefix before{part.before_in(own.keys), part.before_in(own.values), part.before_in(sums.d_keys),
                        part.before_in(sums.d_values)};
    const AttentionBlockGradients block = attention_backward(
        part.of(d_output), result.rows(part.begin, part.offsets.back()), part.of(queries), part.of(own.keys),
        part.of(own.values), part.offsets, part.right_before > 0 ? before : Prefix{}, settings_);
    part.of(sums.d_queries).add_(block.d_queries);
    part.of(sums.d_keys).add_(block.d_keys);
    part.of(sums.d_values).add_(block.d_values);
  }
  const auto look = [&](const Part& part, const EarlierTokens& tokens) {
    attend_earlier_backward(part.first_of(sums.d_queries), part.first_of(d_output),
                            result.rows(part.begin, part.offsets[1]), part.first_of(queries), tokens,
                            settings_);
  };
  for_each_own_viewer({own.keys, own.values, sums.d_keys, sums.d_values}, look);
  for (const RowExchange& message : exchanges(own)) {
    Prefix block = receive(message, own);
    const MemoryScope scope("key and value gradients");
    block.key_gradients = zeros(block.keys);
    block.value_gradients = zeros(block.values);
    for_each_viewer(message.received, block, look);
    for (const auto& [left, sum] :
         {std::pair{block.key_gradients, sums.d_keys}, std::pair{block.value_gradients, sums.d_values}}) {
      const at::Tensor rows = rows_.own_in(sum, message.sent);
      const at::Tensor coming = at::empty_like(rows);
      communicator_.send_receive(left, message.from, coming, message.to);
      rows.add_(coming);
    }
  }
  return sums;
}

}  // namespace streambp
