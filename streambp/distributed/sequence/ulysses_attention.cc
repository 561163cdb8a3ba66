#include "streambp/distributed/sequence/ulysses_attention.h"

#include <algorithm>
#include <utility>

#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_sinks.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// In which every rank's rows go to all others.
std::vector<RowExchange> messages(const Communicator& communicator, const RowsOfRank& rows,
                                  const at::Tensor& x) {
  const SequenceSplit& split = rows.split();
  const std::vector<RowRanges> sent(static_cast<size_t>(split.ranks()), rows_of(rows.all()));
  std::vector<RowRanges> received;
  for (int64_t rank = 0; rank < split.ranks(); ++rank) received.push_back(rows_of(split.pieces(rank)));
  const int64_t of_row = x.numel() / x.size(0);
  return row_exchanges(communicator.rank(), sent, received,
                       std::max<int64_t>(piece_of_share(1) / std::max<int64_t>(of_row, 1), 1));
}

std::vector<int64_t> with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.front() = rows;
  return shape;
}

}  // namespace

void require_divided_heads(const Config& config, int64_t layer, int64_t ranks) {
  const int64_t heads = config.query_heads_of(layer), key_heads = config.key_value_heads_of(layer);
  if (heads % ranks != 0 || (key_heads % ranks != 0 && ranks % key_heads != 0))
    throw InputError(
        "layer {}: {} heads and {} of keys over {} ranks, expected ranks that divide the heads, and those of "
        "keys or a multiple of their number; a ring has no such limit",
        layer, heads, key_heads, ranks);
}

UlyssesAttention::UlyssesAttention(Communicator& communicator, const RowsOfRank& rows, const Config& config,
                                   int64_t layer, const AttentionSettings& settings)
    : communicator_(communicator), rows_(rows), settings_(settings) {
  require_divided_heads(config, layer, communicator.size());
}

UlyssesAttention::Heads UlyssesAttention::heads_of(int64_t rank, int64_t heads) const {
  const int64_t ranks = communicator_.size();
  return {rank * heads / ranks, std::max<int64_t>(heads / ranks, 1)};
}

at::Tensor UlyssesAttention::to_heads(const at::Tensor& x) {
  const int64_t rank = communicator_.rank();
  const Heads mine = heads_of(rank, x.size(1));
  const at::Tensor own = mine.of(x);
  at::Tensor all;
  {
    const MemoryScope scope("attention heads");
    all = at::empty(with_rows(own, rows_.split().offsets().back()), x.options());
  }
  const MemoryScope scope("communication");
  for (const RowRange& range : rows_of(rows_.all()))
    all.narrow(0, range.begin, range.size()).copy_(rows_.own_in(own, range));
  for (const RowExchange& message : messages(communicator_, rows_, x)) {
    const Heads theirs = heads_of(message.to, x.size(1));
    communicator_.send_receive(rows_.own_in(theirs.of(x), message.sent).contiguous(), message.to,
                               all.narrow(0, message.received.begin, message.received.size()), message.from);
  }
  return all;
}

void UlyssesAttention::add_to_rows(const at::Tensor& of_heads, const at::Tensor& rows) {
  const MemoryScope scope("communication");
  const at::Tensor own = heads_of(communicator_.rank(), rows.size(1)).of(rows);
  for (const RowRange& range : rows_of(rows_.all()))
    rows_.own_in(own, range).add_(of_heads.narrow(0, range.begin, range.size()));
  for (const RowExchange& message : messages(communicator_, rows_, rows)) {
    const at::Tensor sum = rows_.own_in(heads_of(message.to, rows.size(1)).of(rows), message.sent);
    const at::Tensor coming = at::empty(sum.sizes(), of_heads.options());
    communicator_.send_receive(of_heads.narrow(0, message.received.begin, message.received.size()),
                               message.from, coming, message.to);
    sum.add_(coming);
  }
}

UlyssesAttention::OwnHeads UlyssesAttention::gather(const at::Tensor& queries, const KeysValues& own) {
  return {to_heads(queries), {to_heads(own.keys), to_heads(own.values)}, {}};
}

AttentionBlock UlyssesAttention::forward(const at::Tensor& queries, const KeysValues& own, bool goes_back) {
  OwnHeads mine = gather(queries, own);
  {
    const MemoryScope scope("attention heads");
    mine.result = attention_forward(mine.queries, mine.keys_values.keys, mine.keys_values.values,
                                    rows_.split().offsets(), {}, settings_);
  }
  AttentionBlock rows;
  {
    const MemoryScope scope("attention rows");
    rows = {at::zeros(queries.sizes(), queries.options()),
            at::zeros({queries.size(0), queries.size(1)}, mine.result.log_sum_exp.options())};
    if (mine.result.remainder.defined()) rows.remainder = at::zeros_like(rows.output);
  }
  // Their rows next to each other: the kernels may give other layouts.
  add_to_rows(mine.result.output.contiguous(), rows.output);
  add_to_rows(mine.result.log_sum_exp.contiguous(), rows.log_sum_exp);
  if (rows.remainder.defined()) add_to_rows(mine.result.remainder.contiguous(), rows.remainder);
  if (settings_.sinks != nullptr) add_sinks(rows, settings_.sinks->value);
  if (goes_back) kept_ = std::move(mine);
  return rows;
}

AttentionBlockGradients UlyssesAttention::backward(const at::Tensor& d_output, const AttentionBlock& result,
                                                   const at::Tensor& queries, const KeysValues& own) {
  if (settings_.sinks != nullptr) accumulate_sinks(*settings_.sinks, d_output, result);
  OwnHeads mine = std::exchange(kept_, {});
  if (!mine.queries.defined()) mine = gather(queries, own);
  // With sinks the result is not the one that was kept.
  if (!mine.result.output.defined() || settings_.sinks != nullptr)
    mine.result = {to_heads(result.output), to_heads(result.log_sum_exp),
                   result.remainder.defined() ? to_heads(result.remainder) : at::Tensor()};
  AttentionBlockGradients of_heads;
  {
    const MemoryScope scope("attention heads");
    of_heads = attention_backward(to_heads(d_output), mine.result, mine.queries, mine.keys_values.keys,
                                  mine.keys_values.values, rows_.split().offsets(), {}, settings_);
  }
  mine = {};
  AttentionBlockGradients rows;
  const auto bring_back = [&](at::Tensor& of_head, const at::Tensor& like, at::Tensor& sum) {
    {
      const MemoryScope scope("attention rows");
      // A head that several ranks have gets a summand from each.
      const bool is_sum = like.size(1) < communicator_.size();
      sum = at::zeros(like.sizes(), like.options().dtype(is_sum ? sum_dtype(like) : like.scalar_type()));
    }
    add_to_rows(of_head.contiguous(), sum);
    of_head.reset();
  };
  bring_back(of_heads.d_queries, queries, rows.d_queries);
  bring_back(of_heads.d_keys, own.keys, rows.d_keys);
  bring_back(of_heads.d_values, own.values, rows.d_values);
  return rows;
}

}  // namespace streambp
