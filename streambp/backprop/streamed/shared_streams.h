// Layers that read the keys and values of one below them, and the layers that they are of (Gemma 4); inside
// the library only.
//
// The keys and values of such a layer are kept for the whole stream from its forward pass on. Those who read
// them come first in the backward pass and leave a gradient for every row, which joins what the layer's own
// later chunks leave when its turn comes.
#pragma once

#include <memory>
#include <utility>

#include "streambp/backprop/streamed/key_values.h"
#include "streambp/model/layers/shared_keys_values.h"

namespace streambp {

/// Of a layer that reads another's.
class ConsumerStream final : public CarryStream {
 public:
  ConsumerStream(SharedKeysValues& shared, int64_t layer, int64_t window, const Chunks& chunks)
      : shared_(shared), layer_(layer), window_(window), last_(chunks.last()) {}

  /// Nothing is computed again.
  int64_t first_seen_by(int64_t /*index*/) const override { return last_; }
  void allocate_gradients() override {}
  void move_to(int64_t /*first*/) override {}
  void store(const Rows& /*rows*/, const Carry& /*own*/) override {}

  Before before(const Rows& rows) override {
    const int64_t first = first_seen(rows, window_);
    Before before;
    if (first < rows.begin) before.attention = shared_.rows(layer_, first, rows.begin);
    before.shared = shared_.rows(layer_, rows.begin, rows.end);
    return before;
  }

  Carry received(const Rows& /*rows*/) const override { return {}; }

 private:
  SharedKeysValues& shared_;
  int64_t layer_;
  int64_t window_;  // 0: none
  int64_t last_;    // index of the last chunk
};

/// Of a layer that others read too.
class ProducerStream final : public CarryStream {
 public:
  ProducerStream(SharedKeysValues& shared, int64_t layer, std::unique_ptr<KeyValueStream> own)
      : shared_(shared), layer_(layer), own_(std::move(own)) {}

  int64_t first_seen_by(int64_t index) const override { return own_->first_seen_by(index); }
  void allocate_gradients() override { own_->allocate_gradients(); }
  void move_to(int64_t first) override { own_->move_to(first); }
  void store(const Rows& rows, const Carry& own) override {
    shared_.store(layer_, rows.begin, own.attention);
    own_->store(rows, own);
  }
  Before before(const Rows& rows) override { return own_->before(rows); }

  Carry received(const Rows& rows) const override {
    Carry sum = own_->received(rows);
    const KeysValues of_others = shared_.received(layer_, rows.begin, rows.end);
    if (!sum.attention.keys.defined()) return {.attention = of_others, .recurrent = {}};
    sum.attention.keys = sum.attention.keys + of_others.keys;
    sum.attention.values = sum.attention.values + of_others.values;
    return sum;
  }

 private:
  SharedKeysValues& shared_;
  int64_t layer_;
  std::unique_ptr<KeyValueStream> own_;
};

}  // namespace streambp
