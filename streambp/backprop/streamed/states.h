// The states that a recurrent layer's chunks leave, inside the library only.
#pragma once

#include <array>
#include <vector>

#include "streambp/backprop/streamed/carry_stream.h"

namespace streambp {

/// States at the ends of chunks: of the last one that was run, or for a backward pass of all but the last
/// chunk, whose state nobody continues. A state has one reader, the next chunk, so that two gradients are all
/// that is ever there: of what a chunk continues, and of what it leaves.
class StateStream final : public CarryStream {
 public:
  /// Of `layer`, if what it adds of n-grams is to be handed on as well; -1: it isn't.
  StateStream(const Model& model, const Chunks& chunks, Holds holds, int64_t layer = -1);

  /// A state cannot be had without those before it.
  int64_t first_seen_by(int64_t) const override { return 0; }
  void allocate_gradients() override;
  void move_to(int64_t) override {}
  void store(const Rows& rows, const Carry& own) override;
  Before before(const Rows& rows) override;
  Carry received(const Rows& rows) const override;

 private:
  int64_t index_of(const Rows& rows) const { return rows.begin / chunk_; }
  /// What a chunk leaves; a view.
  DeltaCarry left_by(int64_t index) const;

  int64_t chunk_;
  Holds holds_;
  std::vector<bool> continued_;          // of each chunk: whether the next one continues its last sequence
  at::Tensor states_;                    // [held, Hv, Dk, Dv]; undefined: convolutions have none
  at::Tensor tails_;                     // [held, kernel - 1, channels]
  at::Tensor ngram_tails_;               // [held, rows, S D]; undefined: the layer adds nothing of n-grams
  std::array<DeltaCarry, 2> gradients_;  // of what even and odd chunks leave
};

}  // namespace streambp
