// The modules of a model over one sequence: linear layers with their adapters, norms, attention, MLPs and
// experts, each of which knows its own part of the settings. decoder.h puts them together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reference/config.h"
#include "reference/mixture.h"
#include "reference/ops/ops_attention.h"
#include "reference/ops/ops_layer.h"
#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// The keys and values of one sequence in one layer, as its queries see them.
struct KeyValues {
  Var k, v;
};

/// By layer, of all layers so far that have keys of their own.
using KeyValuesOfLayers = std::map<int, KeyValues>;

/// Of each token of one sequence the tokens that its attention sees, as the indexer of a layer has picked
/// them, by layer.
using PicksOfLayers = std::map<int, std::vector<std::vector<int>>>;

/// For each token t, of the (t + 1) / rate blocks of `rate` tokens that end with it or before it, the topk
/// with the largest sum_h weights_th max(0, queries_th . keys_block): queries [tokens, heads head_dim], keys
/// [blocks, head_dim], weights [tokens, heads].
std::vector<std::vector<int>> picked_by_scores(const IndexerSettings& indexer, int rate,
                                               const Matrix& queries, const Matrix& keys,
                                               const Matrix& weights);

/// What an indexer has picked for each token, but for tokens that `given` has some for in that layer.
std::vector<std::vector<int>> with_given(std::vector<std::vector<int>> picked, const PicksOfLayers& given,
                                         int layer);

/// The modules under their names, "model.layers.0.mlp." with its dot where more names follow. Rows are the
/// tokens of one sequence, x [tokens, in].
class Layers {
 public:
  Layers(const ModelConfig& config, const Parameters& parameters)
      : config_(config), parameters_(parameters) {}

  /// Throws std::invalid_argument if there is none of that name.
  const Var& parameter(const std::string& name) const;
  bool has(const std::string& name) const { return parameters_.contains(name); }

  /// An embedding's rows, [tokens, hidden_size] of "model.embed_tokens".
  Var embed(const std::string& module, const std::vector<int>& tokens) const;

  /// Gemma 4: what every layer is given of each token, besides h, the scaled embedding. With P =
  /// hidden_size_per_layer_input and L layers, [tokens, L P], layer by layer
  ///     (rms_norm(W h / sqrt(hidden_size)) + sqrt(P) e) / sqrt(2)
  /// with e the token's row of a table of its own, and the norm over each layer's P numbers.
  Var per_layer_inputs(const std::vector<int>& tokens, const Var& h) const;

  /// What a layer, "model.layers.0.", makes of h and of its part a of per_layer_inputs, [tokens, P]:
  ///     rms_norm(W_projection (gelu(W_gate h) a))
  Var per_layer_input(const std::string& prefix, const Var& h, const Var& a) const;

  /// What the head makes of hidden states, [rows, vocab_size].
  Var head(const Var& hidden) const;

  Var norm(const std::string& module, const Var& x) const;

  /// Of queries or keys; with qk_norm_by_head of each head by itself, without its mean, by a weight of its
  /// own.
  Var norm_of_heads(const std::string& module, const Var& x) const;

  /// Softmax attention of a layer's tokens on themselves, "model.layers.0.self_attn.". Positions and length
  /// as in decoder.h. It adds its keys and values to `seen`, or takes another layer's from there.
  /// In a layer of MiniMax M3 with an indexer, whose heads each stand for as many query heads, token t sees
  /// for each of them the tokens up to itself in the topk blocks, of `block` tokens, of the highest
  ///     max over s <= t in the block: q_th . k_s,   q_th = rope(norm(W_qh x_t)),   k_s = rope(norm(W_k x_s))
  /// where the last local_blocks of them count more than any other. A choice has no gradient.
  /// Of Qwen4-Exp's indexer all heads together pick topk groups of those that have ended with t or before it,
  /// by the highest sum over heads h of max(0, q_th . k_g) with q_th as above and
  ///     k_g = rope(norm(mean of W_k x_s over the s in group g)), turned as the first of them,
  /// and t sees these and the tokens of its own group that has not ended; or those that `given` has of it.
  Var attention(const std::string& module, int layer, const Var& x, const std::vector<double>& positions,
                double length, KeyValuesOfLayers& seen, const PicksOfLayers& given = {}) const;

  /// What the block that a layer runs before its state space makes of its input h and of e, the rows of the
  /// embedding:
  ///     W_linear mlp(norm(attention(norm([h, e]))))
  /// where W y of q_proj, k_proj, v_proj and gate_up_proj is W y + B (A y) with the layer's own A and B.
  Var shared_block(int layer, const Var& h, const Var& e, const std::vector<double>& positions, double length,
                   KeyValuesOfLayers& seen) const;

  /// The same of a model with latent attention. With c = norm(W_kva x) and the queries' latent x or
  /// norm(W_qa x), head h has
  ///     q_h = [W_qh latent, rope of the rest of it],   k_h = [W_kh c, rope(W_r x)],   v_h = W_vh c
  /// and the scores are scaled by 1 / sqrt of the entries of q_h; see LatentAttentionSettings. With an
  /// indexer token t sees the topk tokens s <= t of the highest
  ///     sum over its heads h of (W_w x_t)_h max(0, q_th . k_s),
  ///     q_th = rope(W_qh norm(W_qa x_t)),   k_s = rope(layer_norm(W_k x_s))
  /// and of equal ones the earlier (GLM-5.3: the topk groups of `group` neighbours that have ended with t or
  /// before it, whose one key is the sum of their k_s times the softmax, over them and entry by entry, of
  /// W_g x_s + ape of s' place, and those tokens of its own group that has not ended); or those that `given`
  /// has of it in this layer, where it has any. With sinks and a gate map attention has these too. It adds
  /// them to `picks`, or takes another layer's from there. A choice has no gradient. With trained_positions
  /// q_h is multiplied by scale_h ln(1 + position) + bias_h, and q_th is rope((W_qh layer_norm(x_t)) times
  /// the like).
  Var latent_attention(const std::string& module, int layer, const Var& x,
                       const std::vector<double>& positions, double length, const PicksOfLayers& given,
                       PicksOfLayers& picks, KeyValuesOfLayers& seen) const;

  /// DeepSeek V4's attention instead, "model.layers.0.self_attn.". With the queries' latents c = norm(W_qa
  /// x), where rope turns the last entries of a head in pairs of neighbours and rms is a norm without a
  /// weight,
  ///     q_h = rope(rms(W_qb,h c)),   k_t = rope(norm(W_kv x_t)),   y = W_ob W_oa rope^-1(softmax(q k) k)
  /// over the keys k of the window, those of blocks, and with sinks; W_oa takes groups of heads apart. Block
  /// b of rate n is of tokens [b n, (b + 1) n), and seen by those from its last one on; its key is
  ///     rope(norm(sum_t softmax(z)_t v_t)),   v_t = W_v x_t,   z_t = W_z x_t + bias_{t - b n}
  /// turned as token b n, with the softmax over its tokens, entry by entry. Where blocks overlap v and z have
  /// twice the entries: of block b the second half of its own tokens', and the first half of those of block
  /// b - 1. Then a token sees the topk blocks of the highest sum over an indexer's heads of
  ///     (W_w x)_h max(0, q'_h . k'_b),   q' = rope(W'_qb c)
  /// with keys k' of a compressor of its own; or those that `given` has of it in this layer, where it has
  /// any. A choice has no gradient.
  Var compressed_attention(const std::string& module, int layer, const Var& x,
                           const std::vector<double>& positions, double length,
                           const PicksOfLayers& given) const;

  /// The gated delta rule instead, "model.layers.0.linear_attn.": with L2-normed q and k,
  ///     [q, k, v] = silu(conv(W_qkv x)),   g = -e^A_log softplus(W_a x + dt_bias),   beta = sigmoid(W_b x)
  ///     y = W_out (rms_norm(gated_delta_rule(q / sqrt(E), k, v, g, beta)) silu(W_z x))
  Var delta_rule(const std::string& module, const Var& x) const;

  /// Kimi Linear's rule with a gate for every channel instead, "model.layers.0.self_attn.": with a
  /// convolution and silu of each of W_q x, W_k x and W_v x, and L2-normed q and k,
  ///     g = -e^A_log softplus(W_fb W_fa x + dt_bias),   beta = sigmoid(W_b x)
  ///     y = W_out (rms_norm(channel_gated_delta_rule(q / sqrt(E), k, v, g, beta)) sigmoid(W_gb W_ga x))
  /// With a decay_bound below 0 g = decay_bound sigmoid(e^A_log (W_fb W_fa x + dt_bias)) instead.
  Var channel_gated_rule(const std::string& module, const Var& x) const;

  /// Mamba-2's state space instead, "model.layers.0.mamba.": with [z, x, B, C, dt] = W_in x of which x, B and
  /// C go through the convolution,
  ///     [x, B, C] = silu(conv([x, B, C]) + bias),   dt = min(max(softplus(dt + dt_bias), low), high)
  ///     y = state_space(C, B, x, -e^A_log dt, dt) + D x
  ///     out = W_out (weight norm(y silu(z)))
  /// where the norm divides each group's share of the columns by its root mean square. Falcon-H1's parts of
  /// W_in x have factors, and there need not be a norm.
  Var state_space_layer(const std::string& module, const Var& x) const;

  /// LFM2's convolution between two gates instead, "model.layers.0.conv.": with [b, c, x] = W_in x
  ///     y = W_out (c conv(b x))
  Var short_convolution(const std::string& module, const Var& x) const;

  /// MiniMax M3's MLPs, "model.layers.0.mlp." or those of a shared expert, with clamped_swiglu.
  Var clamped_mlp(const std::string& module, const Var& x) const;

  /// A dense MLP, "model.layers.0.mlp.".
  Var mlp(const std::string& module, const Var& x) const;

  /// The experts of tokens in a hashed layer, of "model.layers.0.mlp.".
  ExpertsOfTokens hashed_experts(const std::string& module, const std::vector<int>& tokens) const;

  /// What a sparse layer's router gives the experts, [tokens, num_experts]: a softmax, sigmoids, or roots of
  /// softplus.
  Var router(const std::string& module, const Var& x) const;
  /// A softmax of the same logits, which a loss of routers is of where their scores are none.
  Var softmax_of_router(const std::string& module, const Var& x) const;

  /// What the experts make of x with the router's p; `given` as in mixture_of_experts.
  Var experts(const std::string& module, const Var& x, const Var& p, const ExpertsOfTokens& given = {}) const;

  /// Nemotron-H's with moe_hidden_size, of "model.layers.0.mixer.", whose router has read x:
  ///     shared(x) + W_2 sum over the chosen experts of p_e expert_e(W_1 x)
  Var latent_experts(const std::string& module, const Var& x, const Var& p,
                     const ExpertsOfTokens& given) const;

  /// Muse Spark's experts of "model.layers.0.mlp.", whose router has read x: with the norms n before them and
  /// n' of what is scaled first (norm_of_scaled) behind each of them
  ///     W_post sum over the chosen experts of p_e n'(expert_e(n(W_pre x)))
  Var narrow_experts(const std::string& module, const Var& x, const Var& p,
                     const ExpertsOfTokens& given) const;
  /// u / sqrt(mean(u^2) + eps) of u = (1 + w) x, with post_norm_eps.
  Var norm_of_scaled(const std::string& module, const Var& x) const;
  /// Muse Spark's stream h and what a half of a layer adds to it, y, with w = g / residual_temperature of the
  /// trained numbers g, `name`, and b = sigmoid(w):
  ///     sqrt(max(sigmoid(-w) (1 + b), 0.001)) h + b y
  Var gated_sum(const std::string& name, const Var& h, const Var& y) const;

  /// What Granite's experts of "model.layers.0." and its shared MLP make of x with the router's p.
  Var granite_experts(const std::string& prefix, const Var& x, const Var& p,
                      const ExpertsOfTokens& given = {}) const;

  /// Gemma 4's router in "model.layers.0.": the softmax of W_proj (scale rms_norm(h) / sqrt(hidden_size)).
  Var router_added_to_mlp(const std::string& prefix, const Var& h) const;

  /// What Gemma 4's MLP and its experts make of the residual stream h together. With the norms n and n_2
  /// before them, n_1' and n_2' after them, and n(h) = x,
  ///     n_1'(mlp(x)) + n_2'(experts(n_2(h)))
  /// where the experts' probabilities, divided by their sum, are multiplied by per_expert_scale.
  Var mlp_and_experts(const std::string& prefix, const Var& h, const Var& x, const Var& p,
                      const ExpertsOfTokens& given = {}) const;

  /// With several residual streams x = [x_1 ... x_S], each [tokens, hidden_size], of
  /// "model.layers.0.attn_hc." and the like: two weights of every stream,
  ///     a = sigmoid(scale_1 W_1 x / rms(x) + base_1) + eps
  ///     b = magnitude sigmoid(scale_2 W_2 x / rms(x) + base_2) + eps
  /// with W_1 above W_2 in fn. What a half of a layer reads of x is sum_s a_s x_s, and what it gives, y,
  /// makes x_s + b_s y of x_s. The last norm reads the first of the two (names "model.hc_head.hc_").
  /// DeepSeek V4's b has no eps, and the streams are mixed first, x_s = sum_j c_js x_j, by a matrix c that
  /// begins as softmax_s(scale_3 W_3 x / rms(x) + base_3) + eps and is divided by its sums over j, over s,
  /// ..., over j, each plus eps, 2 sinkhorn_iters - 1 times in all (Sinkhorn and Knopp).
  Var streams_read(const std::string& names, const Var& x) const;
  Var streams_given(const std::string& names, const Var& x, const Var& y) const;
  /// Their mean, which the last norm may read instead.
  Var mean_of_streams(const Var& x) const;
  /// Qwen4-Exp's instead, of "model.layers.0.attn_hyper_connection." and the like, with n_s the streams
  /// normed each by itself and times 1 + its part of a weight, and n all of them. What is read is
  ///     1 / S sum_s sigmoid(W_up silu(W_down n / S))_s n_s
  /// and what is given makes x_s + 2 sigmoid(W_inject n / S)_s y of x_s. The head reads the first of the two,
  /// without another norm.
  Var low_rank_read(const std::string& names, const Var& x) const;
  Var low_rank_given(const std::string& names, const Var& x, const Var& y) const;
  /// What such a layer adds to its streams first, of "model.layers.0.ple.": with e the rows of a table for
  /// all n-grams that end with a token (ngram_table.h), and norms n_k, n_q and n_c of each stream,
  ///     g_s = n_k(W_k e)_s . n_q(x)_s / sqrt(hidden_size),   u_s = sigmoid(sign(g_s) sqrt(|g_s|)) W_v e
  ///     u + silu(conv(n_c(u)))
  /// with a causal convolution whose taps are as far apart as the longest n-gram is long. Of |g_s| below 1e-6
  /// the root is that of 1e-6, and has no gradient.
  Var of_ngrams(const std::string& names, int layer, const Var& x, const std::vector<int>& tokens) const;
  /// h [tokens, hidden_size] in every stream.
  Var in_every_stream(const Var& h) const;

  /// x with every group of columns divided by its root mean square; `eps` 0: rms_norm_eps.
  Var plainly_normed(const Var& x, int group, double eps = 0.0) const;

 private:
  /// The inputs of the gated delta rule before its convolution and gates, [tokens, ...].
  struct DeltaInputs {
    Var qkv, z, b, a;
  };

  /// Projections of a layer's tokens: k and v if it has keys of its own, gate with attention_output_gate.
  struct Heads {
    Var q, k, v, gate;
  };

  Var weight_of(const std::string& module) const;
  Var project(const std::string& module, bool has_bias, const Var& x) const;
  Var add_adapter(const std::string& module, const Var& x, const Var& y) const;
  std::string owned_name(const std::string& module) const;
  Var add_own_adapter(const std::string& module, const Var& x, const Var& y) const;
  Var activation(const Var& x) const;
  Var gated(const std::string& module, bool has_bias, const Var& x) const;

  Var stream_logits(const std::string& names, int scale, int first, int count, const Var& x) const;
  Var stream_weights(const std::string& names, int which, Number magnitude, Number eps, const Var& x) const;
  /// The streams mixed, each [tokens, hidden_size].
  std::vector<Var> mixed_streams(const std::string& names, const Var& x) const;
  /// Every stream normed by itself.
  Var normed_streams(const std::string& module, const Var& x) const;
  Heads project_heads(const std::string& module, int layer, const Var& x) const;
  KeyValues normed_keys(const std::string& module, int layer, const Heads& heads) const;
  RopeOptions rotation(int layer, double length) const;
  /// Heads of queries q [tokens, H E] times scale_h ln(1 + position) + bias_h, of `module`'s softmax_scaling.
  Var scaled_by_place(const std::string& module, const Var& q, const std::vector<double>& positions) const;
  /// Rows less their means, normed, times a weight and plus a bias.
  Var layer_norm(const std::string& module, const Var& x, Number eps) const;
  /// Heads of an indexer, of which `turn` rotates a part.
  Var indexer_rope(const Var& heads, const std::vector<double>& positions, const RopeOptions& turn) const;
  /// What the indexer "model.layers.0.self_attn.indexer." picks of x, with the queries' latents.
  std::vector<std::vector<int>> picked(const std::string& module, int layer, const Var& x, const Var& latents,
                                       const std::vector<double>& positions, double length) const;
  /// The tokens that each token sees by that, or by those of `given` where it has any.
  std::vector<std::vector<int>> tokens_picked(const std::string& module, int layer, const Var& x,
                                              const Var& latents, const std::vector<double>& positions,
                                              double length, const PicksOfLayers& given) const;
  /// The tokens that each token sees by Qwen4-Exp's indexer "model.layers.0.self_attn.indexer.".
  std::vector<std::vector<int>> seen_by_means(const std::string& module, int layer, const Var& x,
                                              const std::vector<double>& positions, double length,
                                              const PicksOfLayers& given) const;
  /// The keys of groups, [groups, head_dim], of the indexer `module` with the keys of tokens.
  Matrix keys_of_groups(const std::string& module, const Var& keys, const Var& x) const;
  /// Heads of `size` entries, the last of which turn, or turn back.
  Var rope_last(const Var& heads, int size, const std::vector<double>& positions,
                const RopeOptions& turn) const;
  /// The keys of blocks, [blocks, size], of the compressor `module` of a layer.
  Var block_keys(const std::string& module, int layer, int size, const Var& x,
                 const std::vector<double>& positions, const RopeOptions& turn) const;
  std::vector<std::vector<int>> picked_blocks(const std::string& module, int layer, const Var& x,
                                              const Var& latents, const std::vector<double>& positions,
                                              const RopeOptions& turn) const;
  /// Of each head of MiniMax M3's indexer "model.layers.0.self_attn.indexer.", and each token, those that it
  /// sees.
  std::vector<std::vector<std::vector<int>>> in_picked_blocks(const std::string& module, int layer,
                                                              const Var& x,
                                                              const std::vector<double>& positions,
                                                              double length) const;
  /// Attention of query heads q, of which each share sees what one head of the indexer says.
  Var attention_in_blocks(const std::vector<std::vector<std::vector<int>>>& seen, const Var& q,
                          const KeyValues& source, const AttentionOptions& options) const;
  std::vector<Number> query_factors(const std::vector<double>& positions) const;
  DeltaInputs delta_inputs(const std::string& module, const Var& x) const;

  Var expert(const std::string& experts, int e, const Var& x) const;
  Var interleaved_expert(const std::string& experts, int e, const Var& x) const;
  Var interleaved_linear(const std::string& module, int e, const Var& x) const;
  /// Two matrices of all experts, and what the names of their adapters begin with.
  struct StackedNames {
    std::string gate_up, down, adapters;
  };

  Var stacked_expert(const StackedNames& names, int e, const Var& x) const;
  Var stacked_linear(const std::string& matrices, const std::string& adapter, int e, const Var& x) const;
  /// The product of gate and up in an MLP of "model.layers.0.mlp.", or of its experts.
  Var gated_product(const std::string& module, const Var& gate, const Var& up) const;
  Var expert_activation(const std::string& module, const Var& gate, const Var& up) const;
  Var expert_delta(const std::string& module, int e, const Var& x) const;

  const ModelConfig& config_;
  const Parameters& parameters_;
};

}  // namespace streambp::STREAMBP_REFERENCE
