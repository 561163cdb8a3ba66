// A baseline that holds what transformers 4.51 holds between forward and backward pass, as the paper's
// baselines did.
#pragma once

namespace streambp::bench {

/// Adds the ops of the baseline "hugging-face" (model_ops.h), which Settings::hugging_face asks for. Each
/// gives the values of ours and keeps more in its graph:
/// - norms: the input in float32, and the normalised rows before they are scaled (Qwen3RMSNorm.forward)
/// - rotary embeddings: the input, and its halves exchanged (apply_rotary_pos_emb)
/// - MLPs: gate, its activation, up and their product (Qwen3MLP.forward)
/// - a full head: the logits in the model's dtype, which the output of a causal LM holds, in addition to
///   their float32 log-softmax
void add_hugging_face_baseline();

}  // namespace streambp::bench
