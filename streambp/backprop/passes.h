// What the methods share, inside the library only.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/gradient_groups.h"
#include "streambp/backprop/head/head.h"
#include "streambp/backprop/method.h"
#include "streambp/backprop/streamed/streamed_forward.h"

namespace streambp {

/// One pass: the model, its stream, the head and the resolved settings.
struct Pass {
  Model& model;
  const Stream& stream;
  const HeadPass& head;
  const Objective& objective;
  int64_t chunk;       // resolved
  int64_t head_chunk;  // resolved
  bool stream_head;
  Keep keep;                             // of streambp
  GradientConsumer* consumer = nullptr;  // of methods with MethodKind::fuses_optimizer
  Order order = Order::kReverse;         // of streambp
  bool joins_head = false;               // of streambp
  StreamPart* part = nullptr;            // of streambp
  const ModelOps& ops = own_ops();  // of methods with a baseline: what layers and a full head are made of

  /// The whole stream, for the methods that know no chunks.
  Rows all_rows() const { return stream.rows(0, stream.size()); }

  LayerRun layer_run(bool graph_only = false) const {
    return {.ops = ops,
            .graph_only = graph_only,
            .balance = stream.balance.get(),
            .choices = stream.choices.get()};
  }

  /// The forward pass of all layers is done: what runs again is not counted again, and what has not run yet
  /// does not run twice.
  void close_forward() const {
    if (stream.balance != nullptr) stream.balance->close();
    if (stream.choices != nullptr) stream.choices->close();
    if (stream.shared != nullptr)
      stream.shared->begin_backward(std::max<int64_t>(model.lowest_trainable_layer(), 0));
  }
};

/// Throws InputError where the model can't give what is requested, or the teacher (null: none).
void check_request(const Model& model, const Batch& batch, const HeadRequest& request, const Model* teacher);

HeadOutcome run_standard(const Pass& pass);
HeadOutcome run_checkpoint(const Pass& pass);
HeadOutcome run_streambp(const Pass& pass);
HeadOutcome run_tiled(const Pass& pass);
HeadOutcome run_chunk_major(const Pass& pass);

/// How a method that keeps each layer's input runs a layer over the whole stream, whose `before` are other
/// layers' keys and values: forward without autograd, `own` receiving the layer's own, and forward under
/// autograd and backward, from `leaf` [N, D], the gradient of the output, which it may overwrite, and what
/// other layers have left for the layer's keys and values, to the gradient of the leaf.
using LayerForward = std::function<at::Tensor(const DecoderLayer& layer, const at::Tensor& hidden,
                                              const Before& before, Carry& own)>;
using LayerBackward =
    std::function<at::Tensor(const DecoderLayer& layer, const at::Tensor& leaf, const at::Tensor& gradient,
                             const Before& before, const Carry& received)>;

/// Where a consumer frees gradients: gives `parameters` theirs; those of `layer`, which are returned where
/// there is a consumer, and of the embedding where the layer leaves some for it.
void begin_gradients(const Pass& pass, const std::vector<Parameter*>& parameters);
std::vector<Parameter*> begin_layer_gradients(const Pass& pass, int64_t layer);

/// The gradients of `parameters` are final.
void use_gradients(const Pass& pass, const std::vector<Parameter*>& parameters);

/// Keeps each layer's input, and runs each layer again when its turn comes.
HeadOutcome run_by_layers(const Pass& pass, const LayerForward& forward, const LayerBackward& backward);

/// Order::kForward: the backward pass of `layer` with its chunks from first to last. Replaces `gradient` [N,
/// D], of the layer's output, by that of its input.
void backward_in_order(const Pass& pass, const StreamedForward& forward, int64_t layer, at::Tensor& gradient);

/// Order::kReverse: the backward pass of `layer`, those of its chunks that are `to_run` (Chunks::to_run) from
/// last to first. `gradient` [N, D] is that of the layer's output, or of nothing where there is a `head`,
/// which each chunk's output goes through first. It is replaced by the gradient of the input, unless there is
/// memory `of_input` [N, D] for that.
void backward_in_reverse(const Model& model, const StreamedForward& forward, int64_t layer,
                         const LayerRun& layer_run, const std::vector<int64_t>& to_run,
                         const at::Tensor& gradient, StreamedHead* head = nullptr,
                         const at::Tensor& of_input = {});

/// The same where the layer's attention is taken of all rows at once (StreamPart::attention): chunk by chunk
/// what follows it, then attention, then chunk by chunk what precedes it.
void backward_around_attention(const Model& model, StreamedForward& forward, int64_t layer,
                               const LayerRun& layer_run, const std::vector<int64_t>& to_run,
                               const at::Tensor& gradient, StreamedHead* head, PartAttention& attention);

/// A streambp pass without a scored token: hands over gradients that are zero. Where a provider brings the
/// layers' weights, they are asked for as in any pass: other ranks, which have scored tokens, take part.
void hand_over_unscored(Model& model, const Keep& keep, GradientConsumer& consumer);

/// The final hidden states [N, D], by chunks, with one layer's keys and values and nothing else kept: no
/// backward pass can follow. `part` as in StreamedForward.
at::Tensor streamed_hidden_states(Model& model, const Stream& stream, int64_t chunk,
                                  StreamPart* part = nullptr);

/// Adds the gradient of the embedding for that of the first layer's input, `gradient` [n, D] of `rows`, which
/// may be overwritten, and what other layers have left (Stream::embedded_gradient).
void accumulate_embedding(const Pass& pass, const Rows& rows, at::Tensor gradient);

/// The gradient of hidden states [N, D], for a method that has left them without a graph: streamed and
/// written over them, or through the logits in full. `hidden` is overwritten or freed.
at::Tensor head_gradient(const Pass& pass, at::Tensor hidden, HeadOutcome& outcome);

}  // namespace streambp
