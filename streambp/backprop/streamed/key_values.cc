#include "streambp/backprop/streamed/key_values.h"

#include <algorithm>

#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

int64_t first_seen(int64_t begin, int64_t sequence_begin, int64_t window) {
  return window > 0 ? std::max(sequence_begin, begin - (window - 1)) : sequence_begin;
}

int64_t first_seen(const Rows& rows, int64_t window) {
  return first_seen(rows.begin, rows.sequence_begin, window);
}

KeyValueStream::KeyValueStream(const Model& model, int64_t layer, const Chunks& chunks, Holds holds)
    : chunk_(chunks.size()),
      window_(model.config().windows[static_cast<size_t>(layer)]),
      last_(chunks.last()),
      holds_(holds) {
  // The first row of a chunk looks window - 1 rows back.
  reach_ = window_ == 0 ? last_ : std::min(last_, (window_ - 1 + chunk_ - 1) / chunk_);
  const MemoryScope scope("keys and values");
  const Config& config = model.config();
  const auto options = at::TensorOptions().device(model.device()).dtype(model.dtype());
  const int64_t held = holds == Holds::kAll ? last_ : std::min(last_, reach_ + 1);
  const auto rows_of = [&](int64_t width) {
    return at::empty({held * chunk_, config.carry_heads(layer), width}, options);
  };
  seen_.rows.keys = rows_of(config.carry_key_width(layer));
  seen_.rows.values = rows_of(config.carry_value_width(layer));
}

void KeyValueStream::allocate_gradients() {
  const MemoryScope scope("key and value gradients");
  const auto zeros = [&](const at::Tensor& like) {
    return at::zeros({std::min(last_, reach_ + 1) * chunk_, like.size(1), like.size(2)},
                     like.options().dtype(sum_dtype(like)));
  };
  gradients_.rows.keys = zeros(seen_.rows.keys);
  gradients_.rows.values = zeros(seen_.rows.values);
}

void KeyValueStream::Stretch::move_to(int64_t first, int64_t chunk) {
  const int64_t shift = first - begin / chunk;  // in chunks
  if (shift == 0) return;
  begin = first * chunk;
  for (const at::Tensor& buffer : {rows.keys, rows.values}) {
    if (!buffer.defined()) continue;
    const int64_t chunks = buffer.size(0) / chunk;
    const auto rows_of = [&](int64_t index) { return buffer.narrow(0, index * chunk, chunk); };
    // In an order in which no chunk is overwritten before it has moved.
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t to = shift > 0 ? i : chunks - 1 - i;
      const int64_t from = to + shift;
      if (from >= 0 && from < chunks) {
        rows_of(to).copy_(rows_of(from));
      } else {
        rows_of(to).zero_();
      }
    }
  }
}

void KeyValueStream::move_to(int64_t first) {
  if (holds_ != Holds::kAll) seen_.move_to(first, chunk_);
  gradients_.move_to(first, chunk_);
}

KeysValues KeyValueStream::Stretch::narrow(int64_t from, int64_t to) const {
  if (!rows.keys.defined()) return {};
  return {rows.keys.narrow(0, from - begin, to - from), rows.values.narrow(0, from - begin, to - from)};
}

void KeyValueStream::store(const Rows& rows, const Carry& own) {
  if (rows.begin == last_ * chunk_) return;
  const KeysValues kept = seen_.narrow(rows.begin, rows.end);
  kept.keys.copy_(own.attention.keys);
  kept.values.copy_(own.attention.values);
}

Before KeyValueStream::before(const Rows& rows) {
  const int64_t first = first_seen(rows, window_);
  if (first == rows.begin) return {};
  const KeysValues seen = seen_.narrow(first, rows.begin);
  const KeysValues gradients = gradients_.narrow(first, rows.begin);
  return {.attention = {seen.keys, seen.values, gradients.keys, gradients.values}, .recurrent = {}};
}

Carry KeyValueStream::received(const Rows& rows) const {
  if (rows.begin == last_ * chunk_) return {};
  const KeysValues sums = gradients_.narrow(rows.begin, rows.end);
  const at::ScalarType dtype = seen_.rows.keys.scalar_type();
  return {.attention = {sums.keys.to(dtype), sums.values.to(dtype)}, .recurrent = {}};
}

}  // namespace streambp
