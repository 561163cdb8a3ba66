#include "streambp/distributed/exchanged_keys_values.h"

#include <algorithm>

#include "streambp/backprop/key_values.h"
#include "streambp/distributed/rows_of_rank.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

ExchangedKeysValues::ExchangedKeysValues(Communicator& communicator, const RowsOfRank& rows,
                                         const RowRoutes& routes, const Model& model, int64_t layer)
    : communicator_(communicator),
      rows_(rows),
      routes_(routes),
      window_(model.config().windows[static_cast<size_t>(layer)]) {
  const MemoryScope scope("keys and values");
  const Config& config = model.config();
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  const auto rows_of_width = [&](int64_t width) {
    return at::empty({routes.size(), config.carry_heads(layer), width}, options);
  };
  all_ = {rows_of_width(config.carry_key_width(layer)), rows_of_width(config.carry_value_width(layer))};
}

void ExchangedKeysValues::allocate_gradients() {
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
  return {.attention = {rows_of(gradients_.keys, rows).to(dtype), rows_of(gradients_.values, rows).to(dtype)},
          .recurrent = {}};
}

void ExchangedKeysValues::exchange(
    const KeysValues& buffers, const Ranges& sent, const Ranges& received,
    const std::function<void(const at::Tensor& rows, const at::Tensor& arrived)>& arrived) {
  const MemoryScope scope("communication");
  const int64_t ranks = communicator_.size();
  const int64_t width =
      std::max(buffers.keys.size(1) * buffers.keys.size(2), buffers.values.size(1) * buffers.values.size(2));
  const int64_t most = std::max<int64_t>(piece_of_share(1) / width, 1);
  for (int64_t step = 1; step < ranks; ++step) {
    const int64_t to = (communicator_.rank() + step) % ranks;
    const int64_t from = (communicator_.rank() - step + ranks) % ranks;
    const RowRanges out = in_ranges_of(sent(to), most), in = in_ranges_of(received(from), most);
    for (size_t i = 0; i < std::max(out.size(), in.size()); ++i) {
      for (const at::Tensor& buffer : {buffers.keys, buffers.values}) {
        const at::Tensor none = buffer.narrow(0, 0, 0);
        const at::Tensor rows = i < in.size() ? view(buffer, in[i]) : none;
        const at::Tensor coming = arrived ? at::empty_like(rows) : rows;
        communicator_.send_receive(i < out.size() ? view(buffer, out[i]) : none, to, coming, from);
        if (arrived) arrived(rows, coming);
      }
    }
  }
}

void ExchangedKeysValues::begin() {
  is_exchanged_ = true;
  exchange(
      all_, [&](int64_t other) -> const RowRanges& { return routes_.lent(other); },
      [&](int64_t other) -> const RowRanges& { return routes_.seen(other); });
}

bool ExchangedKeysValues::end() {
  if (!gradients_.keys.defined()) return false;
  has_ended_ = true;
  // The chunks have taken what was left for this rank's own rows.
  for (const Piece& piece : rows_.all()) {
    view(gradients_.keys, {piece.begin, piece.end}).zero_();
    view(gradients_.values, {piece.begin, piece.end}).zero_();
  }
  exchange(
      gradients_, [&](int64_t other) -> const RowRanges& { return routes_.seen(other); },
      [&](int64_t other) -> const RowRanges& { return routes_.lent(other); },
      [](const at::Tensor& rows, const at::Tensor& arrived) { rows.add_(arrived); });
  return routes_.lends();
}

}  // namespace streambp
