// The decoder-only transformers Qwen2, Qwen3 and Llama, from their formulas, as one model with settings:
//     h = embedding[tokens]
//     each layer:  h += W_o attention(rope(q), rope(k), v)        with q, k, v = W_{q,k,v} rms_norm(h)
//                  h += W_down (silu(W_gate n) * (W_up n))         with n = rms_norm(h)
//     logits = W_head rms_norm(h)
// Qwen2 and some Llamas have biases, Qwen3 norms every head's query and key before the rotation, and small
// models use the embedding table as W_head.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/tape.h"

namespace streambp::reference {

enum class RopeType { kDefault, kLinear, kLlama3 };

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
};

/// Parameters, or their gradients, under Hugging Face's names ("model.layers.0.self_attn.q_proj.weight").
/// Weights of linear layers are [out, in]; norms and biases are [1, n]. "lm_head.weight" is absent where
/// embeddings are tied.
using Weights = std::map<std::string, Matrix>;

/// The same on a tape.
using Parameters = std::map<std::string, Var>;

/// Marks a token whose logits are not scored.
inline constexpr int kNoTarget = -100;

/// One sequence without padding. All three have its length.
struct Sequence {
  std::vector<int> tokens;
  std::vector<double> positions;  // for the rotation only; may have gaps
  std::vector<int> targets;       // targets[t] is what the logits at t are scored on, or kNoTarget
};

/// A loss as a function of log-probabilities [n, 1] of the n tokens that have a target, in order, n > 0.
/// Gives [1, 1].
using Objective = std::function<Var(Tape&, const Var& log_probabilities)>;

struct Result {
  double loss = 0.0;
  std::vector<double>
      log_probabilities;  // of all tokens of all sequences, in order; 0 where there is no target
  Weights gradients;      // of the loss, for every parameter
};

/// The name and shape (rows, columns) of every parameter. Throws std::invalid_argument if a size is not
/// positive (layers may be none), the key/value heads do not divide the query heads, or head_dim is odd.
std::map<std::string, std::pair<Index, Index>> parameter_shapes(const ModelConfig& config);

/// The head_dim / 2 frequencies of the rotation, f_i = theta^(-2i / head_dim), changed for long contexts in
/// this way:
/// - linear: f / factor (Chen et al. 2023, https://arxiv.org/abs/2306.15595).
/// - llama3: with the wavelength 2 pi / f and the context length c of pre-training, f / factor where the
/// wavelength is over
///   c / low_freq_factor, f where it is under c / high_freq_factor, and between them (1 - s) f / factor + s f
///   with s = (c / wavelength - low) / (high - low) (transformers, modeling_rope_utils.py,
///   _compute_llama3_parameters).
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

/// The hidden states of one sequence after the last norm, [tokens, hidden_size].
Var hidden_states(const ModelConfig& config, const Parameters& parameters, const Sequence& sequence);

/// The natural logarithms of the probabilities of all targets of all sequences, in order, [n, 1]. Sequences
/// do not see one another. Throws std::invalid_argument if a sequence's vectors differ in length or a token
/// or target is not in the vocabulary.
Var log_probabilities(Tape& tape, const ModelConfig& config, const Parameters& parameters,
                      const std::vector<Sequence>& sequences);

/// Loss, log-probabilities and all gradients. Without any target the loss and all gradients are 0 and the
/// objective is not called. Throws std::invalid_argument as the functions above, and if a parameter is
/// missing, unknown or of a wrong shape.
Result evaluate(const ModelConfig& config, const Weights& weights, const std::vector<Sequence>& sequences,
                const Objective& objective);

}  // namespace streambp::reference
