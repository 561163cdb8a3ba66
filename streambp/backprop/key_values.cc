#include "streambp/backprop/key_values.h"

#include <algorithm>

#include "streambp/memory/meter.h"

namespace streambp {

KeyValueStream::KeyValueStream(const Model& model, int64_t layer, int64_t chunks, int64_t chunk)
    : chunk_(chunk), window_(model.config().windows[static_cast<size_t>(layer)]), last_(chunks - 1) {
  // The first row of a chunk looks window - 1 rows back.
  reach_ = window_ == 0 ? last_ : std::min(last_, (window_ - 1 + chunk - 1) / chunk);
  const MemoryScope scope("keys and values");
  const Config& config = model.config();
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  const int64_t rows = std::min(last_, reach_ + 1) * chunk;
  keys_ = at::empty({rows, config.num_key_value_heads, config.head_dim}, options);
  values_ = at::empty_like(keys_);
}

void KeyValueStream::allocate_gradients() {
  const MemoryScope scope("key and value gradients");
  const auto dtype = keys_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  key_gradients_ = at::zeros(keys_.sizes(), keys_.options().dtype(dtype));
  value_gradients_ = at::zeros_like(key_gradients_);
}

void KeyValueStream::move_to(int64_t first) {
  const int64_t shift = first - begin_ / chunk_;  // in chunks
  if (shift == 0) return;
  const int64_t chunks = keys_.size(0) / chunk_;
  begin_ = first * chunk_;
  for (const at::Tensor& buffer : {keys_, values_, key_gradients_, value_gradients_}) {
    if (!buffer.defined()) continue;
    const auto place = [&](int64_t index) { return buffer.narrow(0, index * chunk_, chunk_); };
    // In an order in which no chunk is overwritten before it has moved.
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t to = shift > 0 ? i : chunks - 1 - i;
      const int64_t from = to + shift;
      if (from >= 0 && from < chunks) {
        place(to).copy_(place(from));
      } else {
        place(to).zero_();
      }
    }
  }
}

void KeyValueStream::store(const Rows& rows, const KeysValues& own) {
  if (rows.begin == last_ * chunk_) return;
  stretch(keys_, rows.begin, rows.end).copy_(own.keys);
  stretch(values_, rows.begin, rows.end).copy_(own.values);
}

Prefix KeyValueStream::before(const Rows& rows) const {
  int64_t first = rows.sequence_begin;
  if (window_ > 0) first = std::max(first, rows.begin - (window_ - 1));
  if (first == rows.begin) return {};
  return {stretch(keys_, first, rows.begin), stretch(values_, first, rows.begin),
          stretch(key_gradients_, first, rows.begin), stretch(value_gradients_, first, rows.begin)};
}

KeysValues KeyValueStream::received(const Rows& rows) const {
  return {stretch(key_gradients_, rows.begin, rows.end).to(keys_.scalar_type()),
          stretch(value_gradients_, rows.begin, rows.end).to(keys_.scalar_type())};
}

at::Tensor KeyValueStream::stretch(const at::Tensor& buffer, int64_t begin, int64_t end) const {
  return buffer.defined() ? buffer.narrow(0, begin - begin_, end - begin) : at::Tensor();
}

}  // namespace streambp
