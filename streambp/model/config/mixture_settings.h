// Settings of mixtures of experts, under Hugging Face's names where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace streambp {

/// A mixture of experts instead of a layer's MLP (Mixtral, Qwen2-MoE, Qwen3-MoE, GPT-OSS, DeepSeek V3,
/// GLM-4.5, ERNIE 4.5, Granite, LFM2), or next to it (Gemma 4).
struct MixtureSettings {
  int64_t num_experts = 0;  // 0: every MLP is dense
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = false;                  // whether the chosen experts' weights are made to sum to 1
  double router_aux_loss_coef = 0.0;            // weight of the routers' load-balancing loss
  bool output_router_logits = false;            // whether transformers' own loss has that term
  std::vector<bool> sparse;                     // of each layer: experts, or a dense MLP
  int64_t shared_expert_intermediate_size = 0;  // of an expert that every token has; 0: none
  /// mixtral: files call mlp.gate block_sparse_moe.gate, and an expert's gate_proj, up_proj and down_proj w1,
  /// w3 and w2.
  bool block_sparse_moe_names = false;
  /// kimi_linear: the same, and shared_experts and the router's correction are called as they are here.
  bool kimi_names = false;
  /// gpt_oss: router and experts have biases, and all experts of a layer are two tensors, whose gate and up
  /// projections alternate.
  bool biased_interleaved = false;
  /// granite: all experts of a layer are two tensors input_linear and output_linear, [out, in] for each,
  /// under block_sparse_moe, and the shared expert is the layer's shared_mlp.
  bool granite_names = false;
  /// deepseek_v3, glm4_moe: the shared expert (n_shared_experts of them, side by side) is added as it is,
  /// under the name shared_experts; else times the sigmoid of a gate.
  bool shared_expert_ungated = false;
  /// deepseek_v3, glm4_moe, lfm2_moe: scores are sigmoids of the router's logits, not a softmax. The choice
  /// is among the experts of the topk_group best of n_group groups; the chosen scores themselves, normalised
  /// or not, times routed_scaling_factor are the weights.
  bool sigmoid_scores = false;
  /// The same and ernie4_5_moe: the choice is by scores to which a stored number of each expert is added
  /// (e_score_correction_bias, which no gradient reaches).
  bool corrected = false;
  bool wide_logits = false;  // mistral_large4_text: the router's are float32 or wider, as corrected ones are
  bool no_router_loss = false;  // mistral4, mistral_large4_text: their classes have none
  double added_to_sum = 0.0;    // to what chosen scores are divided by
  double least_sum = 0.0;       // ernie4_5_moe (moe_norm_min): what they are divided by at least
  int64_t n_group = 1;
  int64_t topk_group = 1;
  double routed_scaling_factor = 1.0;
  /// gemma4: every layer has its MLP as well, and both read the first half's result through norms of their
  /// own and give theirs through norms of their own. All experts of a layer are two tensors, [out, in] for
  /// each; each expert's weight is multiplied by a trained number.
  bool next_to_mlp = false;
  /// muse_spark: experts read and give as many numbers, between two maps (pre_expert_proj, post_expert_proj);
  /// what is read is normed, and what each expert gives; the router's logits are multiplied by a factor.
  /// 0: they read and give hidden_size.
  int64_t moe_hidden_size = 0;
  /// nemotron_h (moe_latent_size): likewise between two maps fc1_latent_proj and fc2_latent_proj, and nothing
  /// is normed; the shared expert reads and gives hidden_size.
  bool plain_latents = false;
  double router_factor = 1.0;
  bool stacked =
      false;  // hy_v4, mistral4: they are two tensors mlp.experts.gate_up_proj and down_proj, [out, in] each
  /// deepseek_v4: scores are square roots of the softplus of the router's logits; and of each layer, whether
  /// a token's experts are those of a table (mlp.gate.tid2eid), weighted by their scores. Empty: in none.
  bool sqrt_softplus_scores = false;
  std::vector<bool> hashed = {};
  bool is_hashed(int64_t layer) const { return !hashed.empty() && hashed[static_cast<size_t>(layer)]; }
  /// minimax_m2, minimax_m3_vl_text, glm5_next_text, deepseek_v4: their classes' loss that balances the
  /// experts is of a softmax of the logits, which their scores are not; hashed layers have no part in it.
  bool balanced_by_softmax = false;
  /// Whether transformers' classes have a loss that balances the experts, of the softmax of their logits.
  bool has_router_loss() const {
    return balanced_by_softmax || (!sigmoid_scores && !sqrt_softplus_scores && !no_router_loss);
  }
  /// Whether all experts of a layer are two tensors, [out, in] for each.
  bool is_stacked() const { return granite_names || next_to_mlp || stacked; }

  bool operator==(const MixtureSettings&) const = default;
};

}  // namespace streambp
