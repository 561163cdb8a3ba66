// The decoder-only transformers of this project, from their formulas, as one network with settings:
//     h = embedding[tokens]
//     each layer:  h += W_o attention(rope(q), rope(k), v)        with q, k, v = W_{q,k,v} rms_norm(h)
//                  h += W_down (silu(W_gate n) * (W_up n))        with n = rms_norm(h)
//     hidden = rms_norm(h),  logits = W_head hidden,  value = w_value . hidden
// What the families change:
//     Qwen2, Llama     biases; small models use the embedding table as W_head
//     Qwen3            norms every head's query and key before the rotation
//     Qwen3-MoE        a mixture of experts in place of the MLP of some layers
//     Mistral, Qwen2   windows, in all or some layers
//     Phi3             fused projections, and only the first entries of a head rotate
//     Gemma2, Gemma3   norms of the outputs of attention and MLP too, which multiply by 1 + weight, scaled
//                      embeddings, gelu; caps on scores and logits (2), two rotations (3); Gemma has the
//                      scaled embeddings, gelu and 1 + weight of them
//     OLMo 2, OLMo 3   norms of the outputs of attention and MLP only, and of the queries and keys of all
//                      heads together; two rotations (3)
//     SmolLM3          layers that do not rotate
//     Seed-OSS         Llama's, with more biases
//     ERNIE 4.5,       Llama's, of whose heads neighbours rotate
//     Helium
//     Hunyuan          Qwen3's norms of queries and keys, after their rotation
//     EXAONE 4         OLMo 2's norms of outputs, Qwen3's of queries and keys; layers without a window do not
//                      rotate where others have one
//     Granite          factors of embedding, residual stream, scores and logits
//     Granite 4        Granite's, with Mamba-2's state space in place of attention in most layers
//     LFM2             a short convolution between two gates in place of attention in most layers; Qwen3's
//                      norms of queries and keys
//     Zamba 2          state spaces, before some of which a transformer block of several layers reads the
//                      stream and the embedding
//     Nemotron-H       layers that are a state space alone, attention without rotation or an MLP without
//                      a gate
//     GLM-4            norms as in Gemma 2, and pairs of neighbours rotate, half of a head's entries
//     Cohere           layers in which attention and MLP read one norm, which removes the mean; pairs of
//                      neighbours rotate, in Cohere 2 in the layers with a window alone; a factor of logits
//     Ministral 3      queries grow with their position
//     Mixtral          Qwen3-MoE's experts, and windows
//     Qwen2-MoE        an expert that every token has, times a gate of its own
//     GPT-OSS          a sink in every head's softmax; biases of router and experts, whose gates are clamped
//     Qwen3.5          the gated delta rule in place of attention in most layers, and gates of the outputs of
//                      the others; 1 + weight; part of a head rotates. Its mixtures are Qwen2-MoE's
//     Qwen3-Next       the same, with fused projections of the delta rule
//     DeepSeek-V3      keys and values, and queries, out of small latents; routers of sigmoids with a
//     correction
//                      and groups, and an expert that every token has, without a gate
//     DeepSeek-V3.2    the same, and of each token the earlier tokens that an indexer picks for it; GLM-5, of
//                      which some layers see what a layer below has picked
//     Hunyuan 4        GLM-5's picks, sinks and a gate of latent attention, experts that are clamped, and
//                      several residual streams, which gates of the token add up and share out
//     DeepSeek V4      a window and blocks of tokens made one key each, picked or all; keys that are values,
//                      turned back; streams that are mixed; experts by a table of tokens
//     Mistral Large 4  GLM-5's picks, by indexers of hidden states; rotary frequencies and scales of queries
//                      that are trained, layers without rotation; experts by a softmax in groups
//     GLM-4-MoE        DeepSeek-V3's experts with Qwen3's attention, of which half of a head rotates
//     MiniMax M2       the same without groups and such an expert; OLMo 2's norms of queries and keys
//     MiniMax M3       1 + weight; Qwen3's norms of queries and keys, part of a head rotates, and of each
//     token
//                      blocks of earlier ones, picked for each group of heads; clamped MLPs; MiniMax M2's
//                      routers, and an expert that every token has
//     Step 3.7         1 + weight; layers with a window have more heads, and more of a head rotates;
//                      a gate of each head; routers of sigmoids, and an expert that every token has;
//                      clamped products
//     Gemma 4          Gemma 3's norms, but multiplied by the weight itself, and one of the values too;
//                      layers without a window have larger heads, part of which rotates by frequencies
//                      of the whole, and values that are their keys; the last layers have the keys and
//                      values of others. A second embedding for every layer, experts added to the MLP, a
//                      factor of every layer
// Any linear layer can carry a low-rank adapter. transformers, src/transformers/models, has each of them.
#pragma once

#include <map>
#include <vector>

#include "reference/config.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// What the layers make of one sequence.
struct HiddenStates {
  Var states;                             // after the last norm, [tokens, hidden_size]
  std::vector<Var> router_probabilities;  // of each sparse layer, [tokens, num_experts]
  /// Of each sparse layer that a load_balancing_loss is of, where that is of others.
  std::vector<Var> balanced_probabilities;
};

/// The experts of each token of one sequence, in place of those that its routers would choose: of each sparse
/// layer, in order. Empty for a token: the router's choice; empty: all choices are routers'.
using GivenExperts = std::vector<std::vector<std::vector<int>>>;

/// The tokens of one sequence that each of its tokens sees, in place of those that indexers would pick, or of
/// a model whose indexers pick blocks these: by layer, of those that have an indexer. Empty for a token: the
/// indexer's choice; empty: all choices are indexers'.
using GivenPicks = std::map<int, std::vector<std::vector<int>>>;

/// The hidden states of one sequence. `positions` are for the rotation only, one for each token, and may have
/// gaps; windows count tokens. `length` is one more than the greatest position of the whole batch, which some
/// rotations depend on.
HiddenStates hidden_states(const ModelConfig& config, const Parameters& parameters,
                           const std::vector<int>& tokens, const std::vector<double>& positions,
                           double length, const GivenExperts& experts = {}, const GivenPicks& picks = {});

/// W_head hidden, divided and capped where the model does so, [rows, vocab_size]. Throws
/// std::invalid_argument if the model has no such head.
Var logits(const ModelConfig& config, const Parameters& parameters, const Var& hidden);

/// w_value . hidden, [rows, 1]. Throws std::invalid_argument if the model has no such head.
Var values(const ModelConfig& config, const Parameters& parameters, const Var& hidden);

}  // namespace streambp::STREAMBP_REFERENCE
