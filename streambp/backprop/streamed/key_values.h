// The keys and values of one layer that later chunks look at, inside the library only.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/backprop/streamed/carry_stream.h"

namespace streambp {

/// The first token that rows from `begin` on, of a sequence from `sequence_begin` on, look at in a layer with
/// `window` (0: none).
int64_t first_seen(int64_t begin, int64_t sequence_begin, int64_t window);
int64_t first_seen(const Rows& rows, int64_t window);

/// A buffer over some neighbouring chunks of the stream: all but the last one, which no other attends to, or
/// in a layer with a window a chunk and those before it that its window reaches. Such a buffer moves along
/// the stream, and its size does not depend on the stream's.
class KeyValueStream final : public CarryStream {
 public:
  KeyValueStream(const Model& model, int64_t layer, const Chunks& chunks, Holds holds);

  /// The first chunk that chunk `index` looks at.
  int64_t first_seen_by(int64_t index) const override { return std::max<int64_t>(0, index - reach_); }

  /// Half-precision gradients are summed over chunks in float32: the sum has as many terms as there are
  /// chunks that look at a row. They never cover more than the window reaches.
  void allocate_gradients() override;

  /// Moves the buffer by whole chunks so that it begins with chunk `first`. Where all keys and values are
  /// held, only their gradients move.
  void move_to(int64_t first) override;

  /// Keys and values of a chunk within the buffer; those of the last chunk are not kept.
  void store(const Rows& rows, const Carry& own) override;

  /// What a chunk's rows attend to, as far as the window reaches.
  Before before(const Rows& rows) override;

  /// In the keys' dtype.
  Carry received(const Rows& rows) const override;

 private:
  /// Neighbouring rows of the stream. Undefined tensors: they are not there.
  struct Stretch {
    KeysValues rows;    // [rows, K, E], or of latent attention
    int64_t begin = 0;  // index of the first in the stream

    void move_to(int64_t first, int64_t chunk);
    KeysValues narrow(int64_t from, int64_t to) const;
  };

  int64_t chunk_ = 1;
  int64_t window_ = 0;  // of the layer; 0: none
  int64_t reach_ = 0;   // how many chunks back a chunk looks
  int64_t last_ = 0;    // index of the last chunk
  Holds holds_ = Holds::kForward;
  Stretch seen_;
  Stretch gradients_;
};

}  // namespace streambp
