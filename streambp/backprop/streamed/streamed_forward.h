// The forward pass by chunks, and what it keeps for a backward pass by chunks; inside the library only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/kept/kept_activations.h"
#include "streambp/backprop/kept/kept_layers.h"
#include "streambp/backprop/streamed/carry_stream.h"
#include "streambp/backprop/streamed/chunks.h"
#include "streambp/backprop/streamed/stream_buffer.h"
#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/model/model.h"

namespace streambp {

/// What of the layers a forward pass keeps.
struct Keep {
  /// The lowest layer with a backward pass: nothing below it is kept.
  int64_t first = 0;
  /// Every k-th layer's input from there on is kept, and those of the last k layers; the others are computed
  /// again when their turn comes (Chen et al., 2016, arXiv 1604.06174).
  int64_t every = 1;
  /// Activations in addition to inputs. Where attention's output is among them, an input that was not kept is
  /// computed again token by token, without keys, values or attention.
  KeptLayers activations;
  Offload offload = Offload::kNone;
  /// Of how many layers, the lowest ones that have a backward pass, the activations go to the host's memory;
  /// inputs stay on the device. Nothing: all that is kept goes.
  std::optional<int64_t> offload_layers;

  bool inputs_on_host() const { return offload == Offload::kHost && !offload_layers; }
  bool activations_on_host(int64_t layer) const {
    return offload == Offload::kHost && (!offload_layers || layer - first < *offload_layers);
  }
};

/// What attention takes of all rows of a stream.
struct StreamHeads {
  at::Tensor queries;  // [N, H, E]
  KeysValues own;      // [N, K, E] each
};

/// Some rows' part of what attention has given all of them.
inline AttentionBlock attended_by(const Rows& rows, const AttentionBlock& all) {
  return all.rows(rows.begin, rows.size());
}

class StreamedForward {
 public:
  /// `part`: null, or where the rest of the stream's batch is.
  StreamedForward(const Model& model, const Stream& stream, int64_t chunk, const Keep& keep,
                  StreamPart* part = nullptr);

  /// Runs the layers below `end`.
  void run(int64_t end);

  /// One layer by itself, whose input [N, D] somebody else keeps: lends it that input; returns its output.
  void lend_input(int64_t layer, at::Tensor input) { inputs_[layer] = StreamBuffer(std::move(input)); }
  at::Tensor run_alone(int64_t layer);
  /// And what else was kept of it when it ran alone.
  void lend_kept(int64_t layer, KeptActivations kept) { kept_[layer] = std::move(kept); }

  const Chunks& chunks() const { return chunks_; }

  /// An empty one.
  std::unique_ptr<CarryStream> carry_stream_of(
      int64_t layer, CarryStream::Holds holds = CarryStream::Holds::kForward) const {
    return part_ == nullptr ? carry_stream(model_, stream_, layer, chunks_, holds)
                            : part_->carry_stream(model_, stream_, layer, chunks_, holds);
  }

  /// Null: the layer's chunks attend one after another.
  std::unique_ptr<PartAttention> attention_of(int64_t layer) const {
    return part_ == nullptr ? nullptr : part_->attention(model_, layer, chunks_);
  }

  /// Queries, keys and values of `layer`, chunk by chunk. `keep`: for the first time; as projected
  /// they are kept then, if `layer` keeps them, and later not computed again.
  StreamHeads heads(int64_t layer, bool keep = false);

  /// Tells that input() of these rows will be asked for soon: a copy from the host begins.
  void expect_input(int64_t layer, const Rows& rows) const;

  /// The input of `layer`, [n, D]. The first layer's is looked up again rather than kept: it costs a copy of
  /// the rows.
  at::Tensor input(int64_t layer, const Rows& rows) const;

  /// What else is kept of `layer`.
  const KeptActivations& kept(int64_t layer) const { return kept_[layer]; }

  /// Makes the input of `layer` be there: runs the layers from the kept input below it again, and keeps
  /// theirs until they are dropped.
  void rebuild_input(int64_t layer);

  /// The layer that rebuild_input(layer) runs first; `layer` itself where its input is there.
  int64_t rebuilt_from(int64_t layer) const;

  /// The output of the last layer [N, D], which is kept no longer.
  at::Tensor take_hidden() { return inputs_.back().take(); }

  /// Memory on the device for the gradient of the input of `layer`, [N, D]. Where that input is there, this
  /// is its own memory: a chunk's gradient may be written when its input is no longer needed. Of a part's
  /// stream it is needed until the layer's end, and this is other memory.
  at::Tensor gradient_room(int64_t layer) const;

  /// Frees what is kept of `layer`.
  void drop(int64_t layer);

 private:
  bool is_kept(int64_t layer) const;
  /// Whether an activation of which `count` layers keep theirs is kept of `layer`.
  bool keeps(int64_t count, int64_t layer) const;
  void allocate_input(int64_t layer);
  /// Whose weights are needed after `layer` has been run forward; none: no backward pass follows.
  std::optional<int64_t> after_forward(int64_t layer) const;
  void forward(int64_t layer);
  void forward_again(int64_t layer);
  /// How the chunks of a layer attend, forward: one after another, or all at once and before them.
  struct Attending {
    std::unique_ptr<CarryStream> seen;
    AttentionBlock result;  // [N, H, E]
  };
  /// Ready for the first chunk. `keep` as in heads().
  Attending begin(int64_t layer, bool keep);
  LayerOutput run_chunk(Attending& attending, int64_t layer, int64_t index, const at::Tensor& x,
                        const LayerRun& run, Activations known) const;
  /// A run of `layer` that hands out what is to be kept of it.
  LayerRun layer_run(int64_t layer) const;
  /// Lets go of what has been stored: the copies of one chunk go on while the next one is computed.
  void settle() const;

  const Model& model_;
  const Stream& stream_;
  StreamPart* part_;
  Chunks chunks_;
  Keep keep_;
  std::shared_ptr<HostCopies> copies_;  // where what is kept is on the host
  /// Of each layer, [N, D]; the last one is the head's, the first never held.
  std::vector<StreamBuffer> inputs_;
  std::vector<KeptActivations> kept_;  // of each layer
};

}  // namespace streambp
