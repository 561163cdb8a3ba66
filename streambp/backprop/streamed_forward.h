// The forward pass by chunks, and what it keeps for a backward pass by chunks; inside the library only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/chunks.h"
#include "streambp/backprop/key_values.h"
#include "streambp/backprop/stream_buffer.h"
#include "streambp/model/model.h"

namespace streambp {

/// What of the layers a forward pass keeps.
struct Keep {
  /// The lowest layer with a backward pass: nothing below it is kept.
  int64_t first = 0;
  /// Every k-th layer's input from there on is kept, and those of the last k layers; the others are computed
  /// again when their turn comes (Chen et al., 2016, arXiv 1604.06174).
  int64_t every = 1;
  /// Each layer's attention output and log-sum-exps: attention is then run forward only once, and an input
  /// that was not kept is computed again token by token, without keys, values or attention.
  bool attention = false;
  Offload offload = Offload::kNone;
};

class StreamedForward {
 public:
  StreamedForward(const Model& model, const Stream& stream, int64_t chunk, const Keep& keep);

  /// Runs the layers below `end`.
  void run(int64_t end);

  const Chunks& chunks() const { return chunks_; }

  /// An empty buffer for a layer's keys and values.
  KeyValueStream keys_values(int64_t layer) const { return {model_, layer, chunks_}; }

  /// Tell that input() or attended() of these rows will be asked for soon: copies from the host begin.
  void expect_input(int64_t layer, const Rows& rows) const;
  void expect_attended(int64_t layer, const Rows& rows) const;

  /// The input of `layer`, [n, D]. The first layer's is looked up again rather than kept: it costs a copy of
  /// the rows.
  at::Tensor input(int64_t layer, const Rows& rows) const;

  /// The kept attention output and log-sum-exps of `layer`; undefined tensors where they are not kept.
  AttentionBlock attended(int64_t layer, const Rows& rows) const;

  /// Makes the input of `layer` be there: runs the layers from the kept input below it again, and keeps
  /// theirs until they are dropped.
  void rebuild_input(int64_t layer);

  /// The output of the last layer [N, D], which is kept no longer.
  at::Tensor take_hidden() { return inputs_.back().take(); }

  /// Memory on the device for the gradient of the input of `layer`, [N, D]. Where that input is there, this
  /// is its own memory: a chunk's gradient may be written when its input is no longer needed.
  at::Tensor gradient_room(int64_t layer) const;

  /// Frees what is kept of `layer`.
  void drop(int64_t layer);

 private:
  bool is_kept(int64_t layer) const;
  void allocate_input(int64_t layer);
  void forward(int64_t layer);
  void forward_again(int64_t layer);
  LayerRun layer_run() const;
  /// A layer is done: what its last chunk has stored is let go of.
  void settle() const;
  void keep_attention(int64_t layer, const Rows& rows, const AttentionBlock& attended);

  const Model& model_;
  const Stream& stream_;
  Chunks chunks_;
  Keep keep_;
  std::shared_ptr<HostCopies> copies_;  // where what is kept is on the host
  std::vector<StreamBuffer>
      inputs_;  // of each layer, [N, D]; the last one is the head's, the first never held
  std::vector<StreamBuffer> outputs_;       // of each layer's attention, [N, H, E], where they are kept
  std::vector<StreamBuffer> log_sum_exps_;  // [N, H]
};

}  // namespace streambp
