// The methods of back-propagation, behind one interface: (model, batch, objective) -> loss, gradients.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/backprop/method_kind.h"
#include "streambp/backprop/settings.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// Tables of the same vocabulary are padded to different sizes (Qwen2.5: 151,936 or 152,064 rows). Throws
/// InputError where those of a divergence differ by more than 1 % of the larger one and the request is not
/// for any_vocabulary: a teacher's distribution over another vocabulary is not one over the policy's tokens.
void check_vocabularies(const HeadRequest& request, int64_t policy, int64_t teacher);

/// What a pass gives in addition to the gradients, which it adds to those of the model's parameters.
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
/// chunks in reverse order, the head streamed, the loss a sum over tokens, no fused
/// optimizer, and no balance
/// of a mixture, which asks for the whole forward pass before any backward pass.
bool joins_head(const Model& model, const Objective& objective, const Settings& settings);

/// As many rows of logits as fit into memory that is needed elsewhere: as much as the layers' backward passes
/// need, or, where the head goes by the layers' chunks (`by_chunks`: streambp with a loss that is a sum over
/// tokens), as the backward pass of one chunk's MLP needs. An objective that looks at the whole distribution
/// needs more than one number for each logit, and gets fewer rows.
int64_t auto_head_chunk(const Config& config, int64_t tokens, int64_t chunk, at::ScalarType dtype,
                        const HeadRequest& request = {}, bool by_chunks = false);

/// Loss and gradients of `objective` on `batch`. `teacher` is asked for by objectives with a divergence only;
/// it sees the same tokens. Throws InputError as check_settings does, for an objective that was made from
/// another batch, and for a value head or a teacher that is missing, a teacher with another vocabulary
/// (check_vocabularies) or without a token of the batch; OutOfMemory (or c10's) when memory runs out:
/// gradients are then incomplete.
Outcome backpropagate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                      Model* teacher = nullptr);

/// Takes as much of the host's memory as a pass over `tokens` tokens will keep there, and gives it back to
/// the allocator: page-locked memory, which costs a second for some gigabytes, is then there before the pass
/// begins. Does nothing where nothing is offloaded.
void reserve_host_memory(const Model& model, int64_t tokens, const Settings& settings);

/// The log-probabilities (at `temperature`) and, where the model has a value head and the batch asks for
/// them, the values of the scored tokens, by chunks, without gradients: what a reference model is for. Keeps
/// one stream of hidden states and one layer's keys and values.
Outcome evaluate(Model& model, const Batch& batch, double temperature = 1.0);

}  // namespace streambp
