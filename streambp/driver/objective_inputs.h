// What objectives are given beside the tokens: read from files, or made up for sweeps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "streambp/model/safetensors.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The batch of an objective from a safetensors file whose tensors are named as in the golden cases (`prefix`
/// stands before each name), [B, T] rows of T columns, integers of any width, floats of any:
/// - all: input_ids [B, T]; optional attention_mask, position_ids [B, T]
/// - kLabels: optional labels [B, T]
/// - kPairs: completion_mask [B, T], B even, the chosen rows first; optional ref_chosen_logps and
/// ref_rejected_logps [B/2]
/// - kRanked: optional margin [B/2]; the chosen rows first, each scored at its last token
/// - kTexts: nothing else
/// - kLabelled: completion_mask [B, T], role [B] (1 desirable, 0 undesirable, 2 KL estimate); optional
/// ref_logps [B]
/// - kCompletions: completion_mask [B, C] of the last C columns, advantages [B] or [B, C]; optional
/// old_per_token_logps and
///   ref_per_token_logps [B, C]
/// - kResponses: responses and response_mask [B, R] of the last R columns, old_logprobs, advantages [B, R];
/// optional ref_logprobs [B, R],
///   and value_mask with old_values and returns [B, R]: a value belongs to the column before its response's.
/// Numbers count only where their mask is 1. Throws InputError, naming the file and the tensor: one that is
/// missing, has another shape or dtype, a mask that selects padding or what padding would predict, one of a
/// pair of tensors without the other, responses that are not the last columns of input_ids; and as pack does.
Batch read_objective_batch(const ObjectiveKind& kind, const SafetensorsFile& file, int64_t vocab_size,
                           const std::string& prefix = "");

/// Asks for one value a sequence, as transformers' GenericForSequenceClassification takes its score: at the last
/// token that is not `pad_token_id`, be it real or padding; without one at the last token.
void score_ends(Batch& batch, std::optional<int64_t> pad_token_id = {});

/// Whether `batch` lacks the reference's log-probabilities that the objective asks for under `options`. A
/// reference model's go into token_inputs["reference_log_probabilities"], at the objective's temperature.
bool needs_reference(const ObjectiveKind& kind, const Options& options, const Batch& batch);

/// A seeded batch of `sequences` samples of `seq_len` tokens each, with every input of the objective under
/// `options`. Completions follow a prompt of `prompt` tokens, but at most half of a sequence; 0: a quarter. A
/// pair is one sample, each of its two completions having half of the tokens. Log-probabilities of old policy
/// and reference lie around those of random weights, -log(vocab_size). Throws InputError for pairs of fewer
/// than 4 tokens.
Batch synthetic_batch(const ObjectiveKind& kind, const Options& options, int64_t sequences, int64_t seq_len,
                      int64_t vocab_size, uint64_t seed, int64_t prompt = 0);

}  // namespace streambp
