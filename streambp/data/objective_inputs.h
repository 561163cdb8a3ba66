// What objectives are given in addition to the tokens: read from files, or made up for sweeps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "streambp/data/padded_tensors.h"
#include "streambp/model/files/safetensors.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The batch of an objective from a safetensors file whose tensors have the names that transformers and TRL
/// give them (`prefix` stands before each: "in." in golden cases), [B, T] rows of T columns, integers of any
/// width, floats of any:
/// - all: input_ids [B, T]; optional attention_mask, position_ids [B, T]. Without an attention_mask a row may
///   hold several documents (pack; or as `documents` says); cu_seq_lens_q, cu_seq_lens_k, max_length_q,
///   max_length_k and seq_idx may repeat what position_ids say of them. router_indices [B, T, L, k]
///   (optional): the experts of each token (Batch::router_indices). indexer_indices [B, T, L, k] (optional):
///   the columns that each token's attention sees (Batch::indexer_indices).
/// - kLabels: optional labels [B, T]
/// - kPairs: completion_mask [B, T], B even, the chosen rows first, or B = 1 and as many documents; optional
///   ref_chosen_logps and ref_rejected_logps [B/2]. Or as CPOTrainer and ORPOTrainer have it:
///   chosen_input_ids, chosen_attention_mask, chosen_labels, rejected_ likewise; prompt_ is passed over.
/// - kRanked: optional margin [B/2]; the chosen rows first, each scored at its last token that is not
///   `pad_token_id`, the config's (score_ends)
/// - kTexts: nothing else
/// - kLabelled: completion_mask [B, T], role [B] (1 desirable, 0 undesirable, 2 KL estimate), or the same of
///   as many documents of one row; optional ref_logps [B]. Or as KTOTrainer has it: label [B], the estimate's
///   rows as KL_input_ids, KL_attention_mask, KL_completion_mask, ref_KL_logps.
/// - kCompletions: completion_mask [B, C] of the last C columns, advantages [B] or [B, C]; optional
/// tool_mask,
///   old_per_token_logps, ref_per_token_logps and sampling_per_token_logps [B, C], importance_sampling_ratio
///   [B, C] or [B, 1], old_logps [B] (RLOO: of whole completions). Or as GRPOTrainer has it: prompt_ids,
///   prompt_mask, completion_ids for input_ids and attention_mask.
/// - kResponses: responses and response_mask [B, R] of the last R columns, old_logprobs, advantages [B, R];
///   optional ref_logprobs [B, R], and value_mask with old_values and returns [B, R]: a value belongs to the
///   column before its response's.
/// - where the objective has an option for it: num_items_in_batch, one number, instead of the option's
/// default. Numbers count, and have to be finite, only where their mask is 1. Throws InputError, naming the
/// file and the tensor: one that is missing, unknown, or has another shape or dtype, a mask that selects
/// padding or what padding would predict, one of a pair of tensors without the other, responses that are not
/// the last columns of input_ids, documents where the objective scores rows; and as pack does.
Batch read_objective_batch(const ObjectiveKind& kind, const SafetensorsFile& file, int64_t vocab_size,
                           const std::string& prefix = "", FirstLabels first_labels = FirstLabels::kRefuse,
                           std::optional<int64_t> pad_token_id = {}, Documents documents = Documents::kSdpa);

/// The same of tensors at hand, on any device, by the same names. `prefix` stands before names in messages.
Batch read_objective_batch(const ObjectiveKind& kind, std::map<std::string, at::Tensor> tensors,
                           int64_t vocab_size, FirstLabels first_labels = FirstLabels::kRefuse,
                           std::optional<int64_t> pad_token_id = {}, const std::string& prefix = "",
                           Documents documents = Documents::kSdpa);

/// `--first-labels refuse|ignore|ignore-all`, `--documents sdpa|flash`. Throw InputError for another word.
FirstLabels parse_first_labels(const std::string& word);
Documents parse_documents(const std::string& word);

/// What the author of a file should know of how it was read: a line each, for stderr.
std::vector<std::string> reading_notes(const Batch& batch);

/// Asks for one value a sequence, as transformers' GenericForSequenceClassification takes its score: at the
/// last token that is not `pad_token_id`, be it real or padding; without one at the last token.
void score_ends(Batch& batch, std::optional<int64_t> pad_token_id = {});

/// Whether `batch` lacks the reference's log-probabilities that the objective asks for under `options`. A
/// reference model's go into token_inputs["reference_log_probabilities"], at the objective's temperature.
bool needs_reference(const ObjectiveKind& kind, const Options& options, const Batch& batch);

/// A seeded batch of `sequences` samples of `seq_len` tokens each, with every input of the objective under
/// `options`. Completions follow a prompt of `prompt` tokens, but at most half of a sequence; 0: a quarter. A
/// pair is one sample, each of its two completions having half of the tokens. Log-probabilities of old policy
/// and reference are around those of random weights, -log(vocab_size). Throws InputError for pairs of fewer
/// than 4 tokens.
Batch synthetic_batch(const ObjectiveKind& kind, const Options& options, int64_t sequences, int64_t seq_len,
                      int64_t vocab_size, uint64_t seed, int64_t prompt = 0);

}  // namespace streambp
