#include "streambp/distributed/sequence/exchanged_keys_values.h"

#include <algorithm>

#include "streambp/backprop/streamed/key_values.h"
#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

ExchangedKeysValues::ExchangedKeysValues(Communicator& communicator, const RowsOfRank& rows,
                                         const RowRoutes& routes, const Model& model, int64_t layer,
                                         const Chunks& chunks, SharedKeysValues* shared)
    : communicator_(communicator),
      rows_(rows),
      routes_(routes),
      layer_(layer),
      window_(model.config().windows[static_cast<size_t>(layer)]),
      last_(chunks.last()),
      shared_(shared) {
  if (shared != nullptr) {
    const Prefix kept = shared->all(layer);
    all_ = {kept.keys, kept.values};
    is_kept_ = is_exchanged_ = kept.keys.defined();
    if (is_kept_) return;
  }
  const MemoryScope scope("keys and values");
  const Config& config = model.config();
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  const auto rows_of_width = [&](int64_t width) {
    return at::empty({routes.size(), config.carry_heads(layer), width}, options);
  };
  all_ = {rows_of_width(config.carry_key_width(layer)), rows_of_width(config.carry_value_width(layer))};
}

void ExchangedKeysValues::allocate_gradients() {
  if (is_kept_) {
    const Prefix kept = shared_->all(layer_);
    gradients_ = {kept.key_gradients, kept.value_gradients};
    return;
  }
  const MemoryScope scope("key and value gradients");
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().dtype(sum_dtype(like)));
  };
  gradients_ = {zeros(all_.keys), zeros(all_.values)};
}

at::Tensor ExchangedKeysValues::view(const at::Tensor& all, const RowRange& range) const {
  return all.narrow(0, routes_.index_of(range.begin), range.size());
}

at::Tensor ExchangedKeysValues::rows_of(const at::Tensor& all, const Rows& rows) const {
  std::vector<at::Tensor> parts;
  for (const Piece& piece : rows_.in_whole(rows.begin, rows.end))
    parts.push_back(view(all, {piece.begin, piece.end}));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

void ExchangedKeysValues::store(const Rows& rows, const Carry& own) {
  if (is_exchanged_) return;  // computed again by a chunk's run
  if (shared_ != nullptr) shared_->store(layer_, rows.begin, own.attention);
  int64_t next = 0;
  for (const Piece& piece : rows_.in_whole(rows.begin, rows.end)) {
    const auto put = [&](const at::Tensor& all, const at::Tensor& from) {
      view(all, {piece.begin, piece.end}).copy_(from.narrow(0, next, piece.size()));
    };
    put(all_.keys, own.attention.keys);
    put(all_.values, own.attention.values);
    next += piece.size();
  }
}

Before ExchangedKeysValues::before(const Rows& rows) {
  const Piece piece = rows_.in_whole(rows.begin, rows.end).front();
  const int64_t first = first_seen(piece.begin, piece.sequence_begin, window_);
  if (first == piece.begin) return {};
  const auto seen = [&](const at::Tensor& all) {
    return all.defined() ? view(all, {first, piece.begin}) : at::Tensor();
  };
  return {.attention = {seen(all_.keys), seen(all_.values), seen(gradients_.keys), seen(gradients_.values)},
          .recurrent = {}};
}

Carry ExchangedKeysValues::received(const Rows& rows) const {
  if (has_ended_) {
    const std::vector<Piece> pieces = rows_.in_whole(rows.begin, rows.end);
    const bool is_lent = std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
      return routes_.is_lent({piece.begin, piece.end});
    });
    if (!is_lent) return {};
  }
  const at::ScalarType dtype = all_.keys.scalar_type();
  KeysValues left{rows_of(gradients_.keys, rows).to(dtype), rows_of(gradients_.values, rows).to(dtype)};
  if (shared_ != nullptr && !has_ended_) {
    const KeysValues of_others = shared_->received(layer_, rows.begin, rows.end);
    left = {left.keys + of_others.keys, left.values + of_others.values};
  }
  return {.attention = std::move(left), .recurrent = {}};
}

void ExchangedKeysValues::exchange(
    const KeysValues& buffers, const std::vector<RowRanges>& sent, const std::vector<RowRanges>& received,
    const std::function<void(const at::Tensor& rows, const at::Tensor& arrived)>& arrived) {
  const MemoryScope scope("communication");
  for (const RowExchange& message :
       row_exchanges(communicator_.rank(), sent, received, rows_of_message(buffers))) {
    for (const at::Tensor& buffer : {buffers.keys, buffers.values}) {
      const auto rows_in = [&](const RowRange& range) {
        return range.size() > 0 ? view(buffer, range) : buffer.narrow(0, 0, 0);
      };
      const at::Tensor rows = rows_in(message.received);
      const at::Tensor coming = arrived ? at::empty_like(rows) : rows;
      communicator_.send_receive(rows_in(message.sent), message.to, coming, message.from);
      if (arrived) arrived(rows, coming);
    }
  }
}

int64_t rows_of_message(const KeysValues& buffers) {
  const int64_t width =
      std::max(buffers.keys.size(1) * buffers.keys.size(2), buffers.values.size(1) * buffers.values.size(2));
  return std::max<int64_t>(piece_of_share(1) / width, 1);
}

void ExchangedKeysValues::begin() {
  if (std::exchange(is_exchanged_, true)) return;
  exchange(all_, routes_.lent(), routes_.seen());
  if (shared_ != nullptr) shared_->keep_all(layer_, all_);
}

bool ExchangedKeysValues::end() {
  if (!gradients_.keys.defined()) return false;
  has_ended_ = true;
  // The chunks have taken what was left for this rank's own rows.
  for (const Piece& piece : rows_.all()) {
    view(gradients_.keys, {piece.begin, piece.end}).zero_();
    view(gradients_.values, {piece.begin, piece.end}).zero_();
  }
  exchange(gradients_, routes_.seen(), routes_.lent(),
           [](const at::Tensor& rows, const at::Tensor& arrived) { rows.add_(arrived); });
  return routes_.lends();
}

SharedOnRanks::SharedOnRanks(const RowsOfRank& rows, const RowRoutes& routes, SharedKeysValues& shared,
                             const Config& config, int64_t layer, const Chunks& chunks)
    : rows_(rows),
      routes_(routes),
      shared_(shared),
      layer_(layer),
      producer_(config.producer_of(layer)),
      window_(config.windows[static_cast<size_t>(layer)]),
      last_(chunks.last()) {}

Before SharedOnRanks::before(const Rows& rows) {
  Before before{.attention = {}, .recurrent = {}, .shared = shared_.rows(layer_, rows.begin, rows.end)};
  const Piece piece = rows_.in_whole(rows.begin, rows.end).front();
  const int64_t first = first_seen(piece.begin, piece.sequence_begin, window_);
  if (first == piece.begin) return before;
  const Prefix all = shared_.all(producer_);
  const auto seen = [&](const at::Tensor& x) {
    return x.defined() ? x.narrow(0, routes_.index_of(first), piece.begin - first) : x;
  };
  before.attention = {seen(all.keys), seen(all.values), seen(all.key_gradients), seen(all.value_gradients)};
  return before;
}

}  // namespace streambp
