// The names under which other people's gradients come, made the model's own.
#pragma once

#include <string>
#include <vector>

#include "streambp/model/config/config.h"
#include "verify/error_measure.h"

namespace streambp::verify {

struct NamedGradients {
  Tensors gradients;               // by the truth's names where they have one, else by their own
  std::vector<std::string> notes;  // what was done to them, for people
};

/// Gives every gradient the name that the truth has for it. Understood are
/// - what wrappers put into a name, anywhere: module (DistributedDataParallel, DeepSpeed), _orig_mod
///   (torch.compile), _fsdp_wrapped_module, _checkpoint_wrapped_module, base_model.model, base_layer and the
///   name of an adapter (PEFT), pretrained_model, policy and v_head (TRL), language_model, and the `grad.` of
///   the golden cases; a model without head (AutoModel) leaves out `model.`;
/// - the value head as v_head.summary.weight (TRL) or score.weight (a model of sequence classification);
/// - experts fused as transformers 5 holds them: mlp.experts.gate_up_proj [X, 2 F, D] and
///   mlp.experts.down_proj [X, D, F], or up_proj and down_proj of experts without a gate (Nemotron-H);
/// - qkv_proj and gate_up_proj, as vLLM and Phi-3 hold them, where the model has q_proj, k_proj, v_proj,
///   gate_proj and up_proj, or the reverse; Kimi Linear's conv1d of queries, keys and values;
/// - with `config`, what files of its family call parameters (model.final_layernorm,
/// block_sparse_moe.experts.0.w1, ...);
/// - the head of a model that ties it to its embedding: left out, given twice (bit-equal), or given alone.
NamedGradients named_as(const Tensors& truth, Tensors gradients, const Config* config = nullptr);

/// Leaves out zeros of parameters of `config` that the truth has no gradient of: what is frozen, or never
/// trained (indexers, corrections of routers).
void drop_untrained(const Tensors& truth, const Config& config, NamedGradients& named);

/// Puts zeros where the truth is exactly 0 and a gradient is left out: frameworks have None there (experts
/// that no token chose).
void fill_left_out(const Tensors& truth, NamedGradients& named);

}  // namespace streambp::verify
