// The decoder-only transformers Qwen2, Qwen3 and Llama, from their formulas, as one network with settings:
//     h = embedding[tokens]
//     each layer:  h += W_o attention(rope(q), rope(k), v)        with q, k, v = W_{q,k,v} rms_norm(h)
//                  h += W_down (silu(W_gate n) * (W_up n))         with n = rms_norm(h)
//     hidden = rms_norm(h),  logits = W_head hidden,  value = w_value . hidden
// Qwen2 and some Llamas have biases, Qwen3 norms every head's query and key before the rotation, and small
// models use the embedding table as W_head. Any linear layer can carry a low-rank adapter.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/tape.h"

namespace streambp::reference {

enum class RopeType { kDefault, kLinear, kLlama3 };

/// A low-rank adapter of a linear layer (Hu et al. 2021, https://arxiv.org/abs/2106.09685):
///     y = W x + b + scale B (A x),   A [rank, in], B [out, rank]
/// with scale = lora_alpha / rank, or lora_alpha / sqrt(rank) under rsLoRA.
struct LoraAdapter {
  int rank = 1;
  double scale = 1.0;
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
  double rms_norm_eps = 1e-6;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool tie_word_embeddings = false;
  RopeType rope_type = RopeType::kDefault;
  double rope_theta = 10000.0;
  double rope_factor = 1.0;                          // linear, llama3
  double rope_low_freq_factor = 1.0;                 // llama3
  double rope_high_freq_factor = 4.0;                // llama3
  double rope_original_max_position_embeddings = 0;  // llama3
  bool has_lm_head = true;                           // false: a critic, which only has a value head
  bool has_value_head = false;
  /// By module ("model.layers.0.self_attn.q_proj", "lm_head" where it is not tied).
  std::map<std::string, LoraAdapter> adapters = {};
};

/// Parameters, or their gradients, under Hugging Face's names ("model.layers.0.self_attn.q_proj.weight").
/// Weights of linear layers are [out, in]; norms and biases are [1, n]. "lm_head.weight" is absent where
/// embeddings are tied; "value_head.weight" is [1, hidden_size]; an adapter adds "<module>.lora_A.weight" and
/// "<module>.lora_B.weight", the names of PEFT without their "base_model.model." in front.
using Weights = std::map<std::string, Matrix>;

/// The same on a tape.
using Parameters = std::map<std::string, Var>;

/// The name and shape (rows, columns) of every parameter. Throws std::invalid_argument if a size is not
/// positive (layers may be none), the key/value heads do not divide the query heads, head_dim is odd, or an
/// adapter belongs to a module that is not a linear layer of the model.
std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config);

/// The head_dim / 2 frequencies of the rotation, f_i = theta^(-2i / head_dim), changed for long contexts in
/// this way:
/// - linear: f / factor (Chen et al. 2023, https://arxiv.org/abs/2306.15595).
/// - llama3: with the wavelength 2 pi / f and the context length c of pre-training, f / factor where the
///   wavelength is over c / low_freq_factor, f where it is under c / high_freq_factor, and between them
///   (1 - s) f / factor + s f with s = (c / wavelength - low) / (high - low) (transformers,
///   modeling_rope_utils.py, _compute_llama3_parameters).
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

/// The hidden states of one sequence after the last norm, [tokens, hidden_size]. `positions` are for the
/// rotation only, one for each token, and may have gaps.
Var hidden_states(const ModelConfig& config, const Parameters& parameters, const std::vector<int>& tokens,
                  const std::vector<double>& positions);

/// W_head hidden, [rows, vocab_size]. Throws std::invalid_argument if the model has no such head.
Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden);

/// w_value . hidden, [rows, 1]. Throws std::invalid_argument if the model has no such head.
Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden);

}  // namespace streambp::reference
