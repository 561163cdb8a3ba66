// The methods of back-propagation, behind one interface: (model, batch, objective) -> loss, gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/stream_buffer.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp {

class Optimizer;

enum class Method {
  kStandard,    // forward over the whole stream under autograd, one backward
  kCheckpoint,  // keep each layer's input, run each layer again in the backward pass
  kStreambp,    // the same, by chunks of the stream from last to first (arXiv 2506.03077)
};

/// By its name on the command line (standard, checkpoint, streambp). Throws InputError that lists the names.
Method parse_method(const std::string& name);
std::string method_name(Method method);
std::vector<std::string> method_names();

/// How a method is run.
struct Settings {
  Method method = Method::kStreambp;
  /// Tokens of a streamed layer's chunk; 0: chosen by auto_chunk. The other methods have none.
  int64_t chunk = 0;
  /// Keep each layer's attention output, so that attention is run forward only once (LightSeq's
  /// rematerialisation-aware checkpointing, arXiv 2310.03294).
  bool keep_attention = false;
  /// Keep every k-th layer's input and compute the others again (Chen et al., 2016, arXiv 1604.06174).
  int64_t every = 1;
  /// Where what is kept of the layers lies.
  Offload offload = Offload::kNone;
  /// Uses each layer's gradients up as soon as they are final (LOMO, arXiv 2306.09782): the pass begins with
  /// no gradient, takes one step for every trainable parameter, and leaves none. Null: gradients are added
  /// to. All these are streambp's.
  Optimizer* optimizer = nullptr;
  /// Of standard and checkpoint: whether layers and a full head hold all that transformers 4.51 holds between
  /// forward and backward pass (float32 copies in norms, halves exchanged by the rotary embedding, activation
  /// and product of the MLP, the logits in the model's dtype beside their float32 log-softmax), as the
  /// paper's baselines did. The gradients are the same.
  bool hugging_face = false;
  /// Whether the LM head is streamed over chunks of scored tokens, or its logits taken in full as Hugging
  /// Face does. Default: streambp streams it, the others don't.
  std::optional<bool> stream_head;
  /// Scored tokens of a streamed head's chunk; 0: chosen by auto_head_chunk.
  int64_t head_chunk = 0;

  bool streams_head() const { return stream_head.value_or(method == Method::kStreambp); }
};

/// What a pass gives beside the gradients, which it adds to those of the model's parameters.
struct Outcome {
  double loss = 0.0;
  at::Tensor log_probabilities;  // [N] float64, 0 where a token has no target; undefined where the objective
                                 // asks for none
  at::Tensor values;             // [N] float64, 0 where no value was asked for; undefined where none was
  int64_t chunk = 0;             // as run; 0 where the method has none
  int64_t head_chunk = 0;        // as run; 0 where the head was not streamed
};

/// The chunk that `--chunk auto` stands for, of a stream of `tokens` tokens.
int64_t auto_chunk(int64_t tokens);

/// As many rows of logits as fit into memory that the layers' backward passes need anyway; an objective that
/// looks at the whole distribution needs more than one number for each logit, and gets fewer rows.
int64_t auto_head_chunk(const Config& config, int64_t tokens, int64_t chunk, at::ScalarType dtype,
                        const HeadRequest& request = {});

/// Loss and gradients of `objective` on `batch`. `teacher` is asked for by objectives with a divergence only;
/// it sees the same tokens. Throws InputError for a chunk below 0, a value head or a teacher that is missing,
/// a teacher with another vocabulary; OutOfMemory (or c10's) when memory runs out: gradients are then
/// incomplete.
Outcome backpropagate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                      Model* teacher = nullptr);

/// The log-probabilities (at `temperature`) and, where the model has a value head and the batch asks for
/// them, the values of the scored tokens, by chunks, without gradients: what a reference model is for. Keeps
/// one stream of hidden states and one layer's keys and values.
Outcome evaluate(Model& model, const Batch& batch, double temperature = 1.0);

}  // namespace streambp
