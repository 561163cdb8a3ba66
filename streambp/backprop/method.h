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
  kTiled,       // checkpoint with MLPs and LM head by tiles of the stream (arXiv 2407.15892, 2506.13996)
  kLogitsOnly,  // checkpoint with the LM head by tiles alone
  kChunkMajor,  // keep keys and values of all layers; chunks outside, layers inside (arXiv 2505.16710)
};

/// By its name on the command line (standard, checkpoint, streambp, tiled, logits-only, chunk-major). Throws
/// InputError that lists the names.
Method parse_method(const std::string& name);
std::string method_name(Method method);
std::vector<std::string> method_names();

/// Whether the method cuts the layers' work into chunks of Settings::chunk.
bool is_chunked(Method method);

/// Whether Settings::hugging_face means something to the method: its layers hold their activations of the
/// whole stream.
bool has_baseline(Method method);

/// In which order streambp takes a layer's chunks in the backward pass.
enum class Order {
  kReverse,  // last to first: nothing but one layer's keys and values is computed twice
  kForward,  // first to last, the keys and values of the whole prefix again for every chunk, as the published
             // code does
};

/// How a method is run.
struct Settings {
  Method method = Method::kStreambp;
  /// Tokens of a chunk (or tile) of an is_chunked() method; 0: chosen by auto_chunk. The others have none.
  int64_t chunk = 0;
  /// Keep each layer's attention output, so that attention is run forward only once (LightSeq's
  /// rematerialisation-aware checkpointing, arXiv 2310.03294).
  bool keep_attention = false;
  /// Keep every k-th layer's input and compute the others again (Chen et al., 2016, arXiv 1604.06174).
  int64_t every = 1;
  /// Where what is kept of the layers lies.
  Offload offload = Offload::kNone;
  Order order = Order::kReverse;
  /// Uses each layer's gradients up as soon as they are final (LOMO, arXiv 2306.09782): the pass begins with
  /// no gradient, takes one step for every trainable parameter, and leaves none. Null: gradients are added
  /// to. All these, from keep_attention on, are streambp's.
  Optimizer* optimizer = nullptr;
  /// Of has_baseline() methods: whether layers and a full head hold all that transformers 4.51 holds between
  /// forward and backward pass (float32 copies in norms, halves exchanged by the rotary embedding, activation
  /// and product of the MLP, the logits in the model's dtype beside their float32 log-softmax), as the
  /// paper's baselines did. The gradients are the same.
  bool hugging_face = false;
  /// Whether the LM head is streamed over chunks of scored tokens, or its logits taken in full as Hugging
  /// Face does. Default: standard and checkpoint don't stream it, the others do; logits-only always does.
  std::optional<bool> stream_head;
  /// Scored tokens of a streamed head's chunk; 0: chosen by auto_head_chunk.
  int64_t head_chunk = 0;

  bool streams_head() const {
    return stream_head.value_or(method != Method::kStandard && method != Method::kCheckpoint);
  }
};

/// Throws InputError for a setting that its method doesn't know, or that is out of range.
void check_settings(const Settings& settings);

/// Tables of the same vocabulary are padded to different sizes (Qwen2.5: 151,936 or 152,064 rows). Throws
/// InputError where those of a divergence differ by more than 1 % of the larger one and the request is not
/// for any_vocabulary: a teacher of another vocabulary says nothing about the policy's tokens.
void check_vocabularies(const HeadRequest& request, int64_t policy, int64_t teacher);

/// What a pass gives beside the gradients, which it adds to those of the model's parameters.
struct Outcome {
  double loss = 0.0;
  at::Tensor log_probabilities;  // [N] float64, 0 where a token has no target; undefined where the objective
                                 // asks for none
  at::Tensor values;             // [N] float64, 0 where no value was asked for; undefined where none was
  int64_t chunk = 0;             // as run; 0 where the method has none
  int64_t head_chunk = 0;        // as run; 0 where the head was not streamed
};

/// The chunk that `--chunk auto` stands for on `device`, of a stream of `tokens` tokens.
int64_t auto_chunk(int64_t tokens, c10::Device device, Method method = Method::kStreambp);

/// The chunk of a pass over `tokens` tokens on `device`; 0 where the method has none.
int64_t chunk_of(const Settings& settings, int64_t tokens, c10::Device device);

/// Whether a pass that keeps every k-th layer's input from layer `first` on (Settings::every) keeps that of
/// `layer`: of each k layers the first one's, and those of the last k layers, which are needed first.
bool keeps_input(int64_t layer, int64_t first, int64_t layers, int64_t every);

/// Whether streambp takes the last layer's chunks through the head at once, and so runs that layer once: its
/// chunks in reverse order, the head streamed, the loss a sum over tokens, no fused optimizer, and no balance
/// of a mixture, which asks for the whole forward pass before any backward pass.
bool joins_head(const Model& model, const Objective& objective, const Settings& settings);

/// As many rows of logits as fit into memory that is needed elsewhere: as much as the layers' backward passes
/// need, or, where the head goes by the layers' chunks (`by_chunks`: streambp with a loss that is a sum over
/// tokens) and beside one of them, as an MLP's does. An objective that looks at the whole distribution needs
/// more than one number for each logit, and gets fewer rows.
int64_t auto_head_chunk(const Config& config, int64_t tokens, int64_t chunk, at::ScalarType dtype,
                        const HeadRequest& request = {}, bool by_chunks = false);

/// Loss and gradients of `objective` on `batch`. `teacher` is asked for by objectives with a divergence only;
/// it sees the same tokens. Throws InputError as check_settings does, for an objective that was made from
/// another batch, and for a value head or a teacher that is missing, a teacher with another vocabulary (check_vocabularies) or without a token of the batch;
/// OutOfMemory (or c10's) when memory runs out: gradients are then incomplete.
Outcome backpropagate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                      Model* teacher = nullptr);

/// The log-probabilities (at `temperature`) and, where the model has a value head and the batch asks for
/// them, the values of the scored tokens, by chunks, without gradients: what a reference model is for. Keeps
/// one stream of hidden states and one layer's keys and values.
Outcome evaluate(Model& model, const Batch& batch, double temperature = 1.0);

}  // namespace streambp
