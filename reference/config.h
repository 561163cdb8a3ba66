// What a decoder is: its settings, and the names and shapes of its parameters.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/rope_frequencies.h"
#include "reference/tape.h"

namespace streambp::reference {

enum class Activation { kSilu, kGeluTanh };

/// A low-rank adapter of a linear layer (Hu et al. 2021, https://arxiv.org/abs/2106.09685):
///     y = W x + b + scale (B (A x) + b'),   A [rank, in], B [out, rank], and b' only where has_bias
/// with scale = lora_alpha / rank, or lora_alpha / sqrt(rank) under rsLoRA. Of the embedding, x is one of the
/// vocabulary's unit vectors: h += scale B A[:, token]. Of the experts' gate_up_proj (gate above up) or
/// down_proj, PEFT keeps all experts in one A [experts rank, in] and one B [out, rank experts]: expert e has
/// the rows e rank + j of A and the columns j experts + e of B, 0 <= j < rank.
struct LoraAdapter {
  int rank = 1;
  double scale = 1.0;
  bool has_bias = false;
};

/// A mixture of experts in place of a layer's MLP; see mixture.h.
struct MixtureSettings {
  int num_experts = 0;  // 0: every MLP is dense
  int num_experts_per_tok = 0;
  int moe_intermediate_size = 0;
  bool norm_topk_prob = false;
  double router_aux_loss_coef = 0.0;  // of load_balancing_loss; 0: the loss has no such term
  std::vector<bool> sparse = {};      // of each layer: experts, or a dense MLP
  bool output_router_logits = true;   // whether a loss that does not say so has that term
};

/// A model's settings under Hugging Face's names.
struct ModelConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // the first entries of a head, which are rotated, while the rest pass; 0: all
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool tie_word_embeddings = false;
  bool fused_projections = false;  // one matrix for query, key and value, and one for gate and up
  bool sandwich_norms = false;     // also the outputs of attention and MLP are normed
  bool norm_adds_one = false;      // norms multiply by 1 + weight
  double embedding_scale = 1.0;
  double attention_scale = 0.0;          // of the scores; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0.0;   // scores s become cap tanh(s / cap); 0: they don't
  double final_logit_softcapping = 0.0;  // the same of the logits
  Activation hidden_act = Activation::kSilu;
  RopeSettings rope = {};
  std::optional<RopeSettings> local_rope = std::nullopt;  // of the layers with a window, if it is another
  std::vector<int> windows = {};  // of each layer: how many tokens a query sees, itself included; 0: all.
                                  // Empty: all in every layer
  MixtureSettings mixture = {};
  int pad_token_id = -1;    // its embedding is a constant of the network's input; -1: there is none
  bool has_lm_head = true;  // false: a critic, which only has a value head
  bool has_value_head = false;
  /// By module ("model.layers.0.self_attn.q_proj", "lm_head", "model.embed_tokens",
  /// "model.layers.0.mlp.experts.down_proj").
  std::map<std::string, LoraAdapter> adapters = {};
  /// By module ("model.embed_tokens", or "lm_head" where it is not tied): rows of its weight that are trained
  /// apart from it, which they replace (PEFT's trainable tokens).
  std::map<std::string, std::vector<int>> trained_rows = {};

  int window(int layer) const { return windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)]; }
  bool is_sparse(int layer) const {
    return mixture.num_experts > 0 && mixture.sparse[static_cast<std::size_t>(layer)];
  }
  int rotary_entries() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

/// Parameters, or their gradients, under Hugging Face's names ("model.layers.0.self_attn.q_proj.weight").
/// Weights of linear layers are [out, in]; norms and biases are [1, n]. "lm_head.weight" is absent where
/// embeddings are tied; "value_head.weight" is [1, hidden_size]; an adapter adds "<module>.lora_A.weight",
/// "<module>.lora_B.weight" and perhaps "<module>.lora_B.bias", trained rows
/// "<module>.token_adapter.trainable_tokens_delta".
using Weights = std::map<std::string, Matrix>;

/// "model.layers.3."
std::string layer_prefix(int layer);

/// The name and shape (rows, columns) of every parameter. Fused projections are `self_attn.qkv_proj` with the
/// rows of query, key and value below one another, and `mlp.gate_up_proj` with gate above up. A sparse layer
/// has the router `mlp.gate` and its experts `mlp.experts.0` and so on. Throws std::invalid_argument if a
/// size is not positive (layers may be none), the key/value heads do not divide the query heads, head_dim or
/// rotary_dim is odd or more is rotated than there is, windows or sparse layers are not given for each layer,
/// a token has no or more experts than there are, or an adapter or trained rows belong to a module that can't
/// have them.
std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config);

}  // namespace streambp::reference
