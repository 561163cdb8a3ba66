#include <algorithm>
#include <cmath>
#include <cstddef>

#include "reference/column_groups.h"
#include "reference/layers.h"
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// A row, [1, n], once for every token.
Var for_every_token(const Var& row, Index tokens) {
  return gather_rows(row, std::vector<int>(static_cast<std::size_t>(tokens), 0));
}

}  // namespace

Layers::Heads Layers::project_heads(const std::string& module, int layer, const Var& x) const {
  const int head_dim = config_.head_dim_of(layer);
  Heads heads;
  if (config_.fused_projections) {
    const Index queries = Index{config_.num_attention_heads} * head_dim;
    const Index keys = Index{config_.key_value_heads_of(layer)} * head_dim;
    const Var qkv = project(module + "qkv_proj", config_.qkv_bias, x);
    heads.q = slice_columns(qkv, 0, queries);
    heads.k = slice_columns(qkv, queries, keys);
    heads.v = slice_columns(qkv, queries + keys, keys);
    return heads;
  }
  const auto times = [](const Var& y, double factor) { return factor == 1.0 ? y : scale(y, factor); };
  heads.q = times(project(module + "q_proj", config_.qkv_bias, x), config_.query_multiplier);
  if (config_.attention_output_gate) {
    const std::vector<Var> parts = split_groups(heads.q, config_.num_attention_heads, {head_dim, head_dim});
    heads.q = parts[0];
    heads.gate = parts[1];
  }
  if (config_.shares_keys(layer)) return heads;
  heads.k = times(project(module + "k_proj", config_.qkv_bias, x), config_.key_multiplier);
  heads.v = config_.values_are_keys(layer)
                ? heads.k
                : times(project(module + "v_proj", config_.qkv_bias, x), config_.query_multiplier);
  return heads;
}

/// The keys and values before any rotation.
KeyValues Layers::normed_keys(const std::string& module, int layer, const Heads& heads) const {
  KeyValues normed = {heads.k, heads.v};
  if (config_.qk_norm && !config_.norms_rotated_heads)
    normed.k = norm_of_heads(module + config_.modules.k_norm, heads.k);
  if (config_.plain_norms) normed.k = plainly_normed(heads.k, config_.head_dim_of(layer));
  if (config_.gemma4.value_norm) normed.v = plainly_normed(heads.v, config_.head_dim_of(layer));
  return normed;
}

Var Layers::attention(const std::string& module, int layer, const Var& x,
                      const std::vector<double>& positions, double length, KeyValuesOfLayers& seen,
                      const PicksOfLayers& given) const {
  const Heads heads = project_heads(module, layer, x);
  const auto rotated = [&](const Var& normed) {
    return config_.rotates(layer) ? rope(normed, positions, rotation(layer, length)) : normed;
  };
  const bool is_after = config_.qk_norm && config_.norms_rotated_heads;
  if (!config_.shares_keys(layer)) {
    const KeyValues normed = normed_keys(module, layer, heads);
    const Var k = rotated(normed.k);
    seen[layer] = {is_after ? norm(module + "key_layernorm", k) : k, normed.v};
  }
  const KeyValues& source = seen.at(config_.key_value_layer(layer));
  Var q = rotated(config_.plain_norms            ? plainly_normed(heads.q, config_.head_dim_of(layer))
                  : config_.qk_norm && !is_after ? norm_of_heads(module + config_.modules.q_norm, heads.q)
                                                 : heads.q);
  if (is_after) q = norm(module + "query_layernorm", q);
  if (config_.query_scale_beta != 0.0) q = scale_rows(q, query_factors(positions));

  AttentionOptions options;
  options.query_heads = config_.query_heads_of(layer);
  options.key_value_heads = config_.key_value_heads_of(layer);
  const Number head_dim = config_.head_dim_of(layer);
  options.scale = config_.attention_scale > 0.0 ? config_.attention_scale : 1.0 / std::sqrt(head_dim);
  options.window = config_.window(layer);
  options.softcap = config_.attn_logit_softcapping;
  if (config_.indexer.of_means)
    options.seen = seen_by_means(module + "indexer.", layer, x, positions, length, given);
  Var mixed = config_.picks_key_blocks(layer)
                  ? attention_in_blocks(in_picked_blocks(module + "indexer.", layer, x, positions, length), q,
                                        source, options)
              : config_.attention_sinks
                  ? causal_attention(q, source.k, source.v, parameter(module + "sinks"), options)
                  : causal_attention(q, source.k, source.v, options);
  if (config_.residual_temperature > 0.0) mixed = plainly_normed(mixed, config_.head_dim_of(layer));
  if (config_.attention_output_gate) mixed = mul(mixed, sigmoid(heads.gate));
  if (config_.output_gate_map) mixed = mul(mixed, sigmoid(project(module + "gate_proj", false, x)));
  if (config_.gates_heads) {
    std::vector<int> head_of_column;
    for (int column = 0; column < mixed.cols(); ++column)
      head_of_column.push_back(column / config_.head_dim_of(layer));
    const Var gate = sigmoid(project(module + "g_proj", false, x));
    mixed = mul(mixed, gather_columns(gate, head_of_column));
  }
  const Var y = project(module + config_.modules.out, config_.o_bias, mixed);
  return config_.attention_multiplier == 1.0 ? y : scale(y, config_.attention_multiplier);
}

Var Layers::latent_attention(const std::string& module, int layer, const Var& x,
                             const std::vector<double>& positions, double length, const PicksOfLayers& given,
                             PicksOfLayers& picks, KeyValuesOfLayers& seen) const {
  const LatentAttentionSettings& latent = config_.latent;
  const int heads = config_.num_attention_heads;
  const int nope = config_.latent_nope(layer), turning = config_.latent_rope(layer);
  const auto norm = [&](const std::string& name, const Var& c) {
    return rms_norm(c, parameter(name + ".weight"), latent.norm_eps);
  };
  const bool has_latents = latent.q_lora_rank > 0;
  const Var of_queries =
      has_latents ? norm(module + "q_a_layernorm", project(module + "q_a_proj", config_.qkv_bias, x)) : x;
  const Var queries = project(module + (has_latents ? "q_b_proj" : "q_proj"), false, of_queries);
  const auto parts_of = [&](const Var& y, int groups, int first) {
    return turning == 0 ? std::vector{y, Var()} : split_groups(y, groups, {first, turning});
  };
  const std::vector<Var> q = parts_of(queries, heads, nope);
  const RopeOptions turn = config_.rotates(layer) ? rotation(layer, length) : RopeOptions{};
  const auto turned = [&](const Var& rows) {
    if (!config_.rotates(layer)) return rows;
    return latent.trained_positions ? rope(rows, parameter("model.rotary_emb.alpha"), positions, turn)
                                    : rope(rows, positions, turn);
  };
  // The latents, and the key that all heads share.
  if (config_.latent_source(layer) == layer) {
    const std::vector<Var> compressed =
        parts_of(project(module + "kv_a_proj_with_mqa", config_.qkv_bias, x), 1, latent.kv_lora_rank);
    seen[layer] = {norm(module + "kv_a_layernorm", compressed[0]),
                   turning == 0 ? Var() : turned(compressed[1])};
  }
  const auto& [latents, shared_key] = seen.at(config_.latent_source(layer));
  const std::vector<Var> kv =
      split_groups(project(module + "kv_b_proj", false, latents), heads, {nope, latent.v_head_dim});
  std::vector<int> of_every_head;
  for (int i = 0; i < heads * turning; ++i) of_every_head.push_back(i % turning);

  AttentionOptions options;
  options.query_heads = options.key_value_heads = heads;
  options.scale =
      config_.attention_scale > 0.0 ? config_.attention_scale : 1.0 / std::sqrt(Number{1} * (nope + turning));
  if (config_.rope.type != RopeType::kDefault && config_.rope.factor > 1.0) {
    const Number stretch = Number{0.1} * latent.mscale_all_dim * std::log(Number{config_.rope.factor}) + 1.0;
    options.scale *= stretch * stretch;
  }
  options.window = config_.window(layer);
  options.softcap = config_.attn_logit_softcapping;
  if (config_.indexer.topk > 0) {
    const int picker = config_.picker_of(layer);
    if (picker == layer)
      picks[layer] = tokens_picked(module + "indexer.", layer, x, of_queries, positions, length, given);
    options.seen = picks.at(picker);
  }
  Var q_all = turning == 0 ? q[0] : join_groups({q[0], turned(q[1])}, heads);
  const Var k_all =
      turning == 0 ? kv[0] : join_groups({kv[0], gather_columns(shared_key, of_every_head)}, heads);
  if (config_.query_scale_beta != 0.0) q_all = scale_rows(q_all, query_factors(positions));
  if (latent.trained_positions) q_all = scaled_by_place(module, q_all, positions);
  Var mixed = config_.attention_sinks
                  ? causal_attention(q_all, k_all, kv[1], parameter(module + "sinks"), options)
                  : causal_attention(q_all, k_all, kv[1], options);
  if (config_.output_gate_map) mixed = mul(mixed, sigmoid(project(module + "gate_proj", false, x)));
  return project(module + "o_proj", config_.o_bias, mixed);
}

Var Layers::scaled_by_place(const std::string& module, const Var& q,
                            const std::vector<double>& positions) const {
  const Var &scales = parameter(module + "softmax_scaling.scale"),
            &biases = parameter(module + "softmax_scaling.bias");
  std::vector<Number> of_rows;
  for (const double position : positions) of_rows.push_back(std::log1p(Number{1} * position));
  // [tokens, heads]: every column of a head is multiplied by its factor.
  const Var factors =
      add(scale_rows(for_every_token(scales, q.rows()), of_rows), for_every_token(biases, q.rows()));
  std::vector<int> head_of_column;
  const Index size = q.cols() / scales.cols();
  for (Index column = 0; column < q.cols(); ++column)
    head_of_column.push_back(static_cast<int>(column / size));
  return mul(q, gather_columns(factors, head_of_column));
}

Var Layers::layer_norm(const std::string& module, const Var& x, Number eps) const {
  const Var means = gather_columns(scale(row_sum(x), Number{1} / static_cast<Number>(x.cols())),
                                   std::vector<int>(static_cast<std::size_t>(x.cols()), 0));
  return add(rms_norm(sub(x, means), parameter(module + ".weight"), eps),
             for_every_token(parameter(module + ".bias"), x.rows()));
}

RopeOptions Layers::rotation(int layer, double length) const {
  const bool is_local = config_.window(layer) > 0 && config_.local_rope.has_value();
  const RopeSettings& settings = is_local ? *config_.local_rope : config_.rope;
  RopeOptions turn;
  const bool is_latent = config_.is_latent();
  const int turning = is_latent ? config_.latent.qk_rope_head_dim : config_.rotary_entries(layer);
  turn.inverse_frequencies = rope_inverse_frequencies(settings, turning, length);
  turn.head_dim = is_latent ? turning : config_.head_dim_of(layer);
  turn.attention_factor = settings.attention_factor;
  turn.interleaved = config_.rope_interleaved;
  return turn;
}

/// By how much the queries far behind the context of pre-training count more.
std::vector<Number> Layers::query_factors(const std::vector<double>& positions) const {
  std::vector<Number> factors;
  for (double position : positions) {
    const Number contexts = std::floor(position / config_.query_scale_original);
    factors.push_back(1.0 + config_.query_scale_beta * std::log1p(contexts));
  }
  return factors;
}

Layers::DeltaInputs Layers::delta_inputs(const std::string& module, const Var& x) const {
  const DeltaRuleSettings& settings = config_.delta_rule;
  if (!settings.fused_projections) {
    return {project(module + "in_proj_qkv", false, x), project(module + "in_proj_z", false, x),
            project(module + "in_proj_b", false, x), project(module + "in_proj_a", false, x)};
  }
  // Of every key head: its query and key, then the values and gates of the heads that have it.
  const int heads = settings.key_heads, shared_by = settings.value_heads / heads;
  const int key = settings.key_head_dim, values = shared_by * settings.value_head_dim;
  const auto qkvz =
      split_groups(project(module + "in_proj_qkvz", false, x), heads, {key, key, values, values});
  const auto ba = split_groups(project(module + "in_proj_ba", false, x), heads, {shared_by, shared_by});
  const Var qkv = join_groups({qkvz[0], qkvz[1], qkvz[2]}, 1);
  return {qkv, qkvz[3], ba[0], ba[1]};
}

Var Layers::delta_rule(const std::string& module, const Var& x) const {
  const DeltaRuleSettings& settings = config_.delta_rule;
  const DeltaInputs inputs = delta_inputs(module, x);
  const Var mixed = activation(causal_convolution(inputs.qkv, parameter(module + "conv1d.weight")));
  const Index keys = Index{settings.key_heads} * settings.key_head_dim;
  const Index values = Index{settings.value_heads} * settings.value_head_dim;
  const double epsilon = 1e-6;  // transformers' own, not rms_norm_eps
  const Var q = l2_norm(slice_columns(mixed, 0, keys), settings.key_head_dim, epsilon);
  const Var k = l2_norm(slice_columns(mixed, keys, keys), settings.key_head_dim, epsilon);
  const Var v = slice_columns(mixed, 2 * keys, values);

  const Var step = softplus(add(inputs.a, for_every_token(parameter(module + "dt_bias"), x.rows())));
  const Var g = scale(mul(for_every_token(exp(parameter(module + "A_log")), x.rows()), step), -1.0);
  const Var o = gated_delta_rule(scale(q, 1.0 / std::sqrt(static_cast<Number>(settings.key_head_dim))), k, v,
                                 g, sigmoid(inputs.b), settings.key_heads);
  // Its norm multiplies by the weight itself, where the others multiply by 1 + weight.
  const Var normed = rms_norm(o, parameter(module + "norm.weight"), config_.rms_norm_eps);
  const Var gate = settings.logistic_gate ? sigmoid(inputs.z) : silu(inputs.z);
  return project(module + "out_proj", false, mul(normed, gate));
}

Var Layers::channel_gated_rule(const std::string& module, const Var& x) const {
  const DeltaRuleSettings& settings = config_.delta_rule;
  const int size = settings.key_head_dim;
  const auto map = [&](const char* name, const Var& of) { return project(module + name, false, of); };
  const auto mixed = [&](const std::string& name) {
    return silu(causal_convolution(project(module + name + "_proj", false, x),
                                   parameter(module + name + "_conv1d.weight")));
  };
  const double epsilon = 1e-6;  // transformers' own, not rms_norm_eps
  const Var q = l2_norm(mixed("q"), size, epsilon), k = l2_norm(mixed("k"), size, epsilon);

  const Var given = add(map("forget_gate.f_b_proj", map("forget_gate.f_a_proj", x)),
                        for_every_token(parameter(module + "forget_gate.dt_bias"), x.rows()));
  std::vector<int> head_of_column;
  for (int column = 0; column < settings.value_heads * size; ++column)
    head_of_column.push_back(column / size);
  const Var& rates = parameter(module + "forget_gate.A_log");
  const Var rate = for_every_token(
      exp(gather_columns(settings.rates_in_row ? rates : transpose(rates), head_of_column)), x.rows());
  const Var g = settings.decay_bound == 0.0 ? scale(mul(rate, softplus(given)), -1.0)
                                            : scale(sigmoid(mul(rate, given)), settings.decay_bound);
  const Var o = channel_gated_delta_rule(scale(q, 1.0 / std::sqrt(static_cast<Number>(size))), k, mixed("v"),
                                         g, sigmoid(map("b_proj", x)), settings.key_heads);
  const Var normed = rms_norm(o, parameter(module + "o_norm.weight"), config_.rms_norm_eps);
  return map("o_proj", mul(normed, sigmoid(map("g_b_proj", map("g_a_proj", x)))));
}

Var Layers::short_convolution(const std::string& module, const Var& x) const {
  const Index size = config_.hidden_size;
  const DeltaRuleSettings& settings = config_.delta_rule;
  const Var all = project(module + "in_proj", settings.in_bias, x);
  const auto part = [&](Index i) { return slice_columns(all, i * size, size); };
  Var mixed = causal_convolution(mul(part(0), part(2)), parameter(module + "conv.weight"));
  if (settings.conv_bias) mixed = add(mixed, for_every_token(parameter(module + "conv.bias"), x.rows()));
  return project(module + "out_proj", settings.out_bias, mul(part(1), mixed));
}

Var Layers::state_space_layer(const std::string& module, const Var& x) const {
  const DeltaRuleSettings& settings = config_.delta_rule;
  const Index tokens = x.rows(), heads = settings.value_heads, size = settings.value_head_dim;
  const Index inner = heads * size, states = Index{settings.key_heads} * settings.key_head_dim;
  const auto of_tokens = [&](const Var& row) { return for_every_token(row, tokens); };
  Var all = project(module + "in_proj", settings.in_bias, x);
  if (!settings.in_multipliers.empty()) {
    const auto& m = settings.in_multipliers;
    const Index ends[] = {0, inner, 2 * inner, 2 * inner + states, 2 * inner + 2 * states, all.cols()};
    std::vector<Var> parts;
    for (std::size_t i = 0; i < m.size(); ++i)
      parts.push_back(scale(slice_columns(all, ends[i], ends[i + 1] - ends[i]), m[i]));
    all = join_groups(parts, 1);
  }
  Var mixed =
      causal_convolution(slice_columns(all, inner, inner + 2 * states), parameter(module + "conv1d.weight"));
  if (settings.conv_bias) mixed = add(mixed, of_tokens(parameter(module + "conv1d.bias")));
  mixed = silu(mixed);
  const Var read = slice_columns(mixed, 0, inner), b = slice_columns(mixed, inner, states),
            c = slice_columns(mixed, inner + states, states);

  const Var raw = slice_columns(all, 2 * inner + 2 * states, heads);
  const Var dt = clip(softplus(add(raw, of_tokens(parameter(module + "dt_bias")))), settings.time_step_low,
                      settings.time_step_high);
  const Var g = scale(mul(of_tokens(exp(parameter(module + "A_log"))), dt), -1.0);
  std::vector<int> head_of_column;
  for (Index column = 0; column < inner; ++column) head_of_column.push_back(static_cast<int>(column / size));
  const Var skip = of_tokens(gather_columns(parameter(module + "D"), head_of_column));
  const Var y = add(state_space(c, b, read, g, dt, settings.key_heads), mul(skip, read));

  const Number group = static_cast<Number>(inner / settings.key_heads);
  const Var gate = silu(slice_columns(all, 0, inner));
  const Var gated = settings.norm_before_gate ? y : mul(y, gate);
  const auto out = [&](const Var& inner_rows) {
    return scale(project(module + "out_proj", settings.out_bias, inner_rows), settings.out_multiplier);
  };
  if (!settings.norms_gated) return out(gated);
  const double eps = settings.norm_eps > 0.0 ? settings.norm_eps : config_.rms_norm_eps;
  const Var normed = scale(l2_norm(gated, inner / settings.key_heads, group * eps), std::sqrt(group));
  const Var weighted = mul(normed, of_tokens(parameter(module + "norm.weight")));
  return out(settings.norm_before_gate ? mul(weighted, gate) : weighted);
}

}  // namespace streambp::STREAMBP_REFERENCE
