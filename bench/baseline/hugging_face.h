// Baselines that hold what transformers 4.51 and TRL's trainers hold between forward and backward pass, as
// the paper's baselines did.
#pragma once

namespace streambp::bench {

/// Adds the ops of two baselines (model_ops.h), which Settings::baseline asks for by name. Each gives the
/// values of ours and keeps more in its graph. "hugging-face":
/// - norms: the input in float32, and the normalised rows before they are scaled (Qwen3RMSNorm.forward)
/// - rotary embeddings: the input, and its halves exchanged (apply_rotary_pos_emb)
/// - MLPs: gate, its activation, up and their product (Qwen3MLP.forward)
/// - a full head: the logits in the model's dtype, which the output of a causal LM holds, in addition to
///   their float32 log-softmax, by which targets that lead by far lose their gradients' digits
/// "trl": the same layers under a head whose logits stay in the model's dtype and go through a log-softmax
/// sequence by sequence (TRL's selective_log_softmax in half precision), as the trainers of DPO, GRPO and
/// their kin take it; its logits are not held. Values are ours up to the rounding of the log-softmax.
/// Objectives that ask for more than log-probabilities, and capped logits, take the other head.
void add_baselines();

}  // namespace streambp::bench
