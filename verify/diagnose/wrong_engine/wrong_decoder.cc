#include "verify/diagnose/wrong_engine/wrong_decoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "streambp/error.h"
#include "streambp/model/config/family.h"
#include "streambp/model/config/rope_frequencies.h"
#include "verify/diagnose/wrong_engine/narrow_values.h"

namespace streambp::verify {
namespace {

/// Whether tensors of all experts are Granite's: WrongLeaves knows those of GPT-OSS, whose matrices are
/// transposed.
bool has_stacked_experts(const Model& model) {
  const auto& all = model.parameters();
  return model.config().swiglu_alpha == 0.0 && std::any_of(all.begin(), all.end(), [](const auto& parameter) {
           return parameter->value.dim() == 3 && parameter->name.ends_with("_linear.weight");
         });
}

at::Tensor frequencies_of(const RopeSettings& rope, const Config& config, int64_t length) {
  const std::vector<double> frequencies = rope_inverse_frequencies(rope, config.rotary_dim, length);
  return at::tensor(at::ArrayRef<double>(frequencies), at::kDouble);
}

/// Scores by chunk masks: a query's [b, T, 1], a key's [b, 1, T].
at::Tensor of_queries(const at::Tensor& x) {
  return x.unsqueeze(2);
}
at::Tensor of_keys(const at::Tensor& x) {
  return x.unsqueeze(1);
}

/// The padding on a row's left where a later chunk counts it, or no longer counts it.
at::Tensor late_padding(const TokenIndices& indices, const at::Tensor& positions, const Cut& cut) {
  const at::Tensor padding = left_padding(indices);
  const at::Tensor first = positions - indices.in_sequence;
  const at::Tensor sign = at::where(first >= padding, at::full_like(padding, -1), at::ones_like(padding));
  return padding * sign * chunk_starts(indices, cut).gt(0);
}

}  // namespace

WrongRows wrong_rows(const WrongBatch& wrong, const WrongSettings& settings, int64_t first, int64_t last) {
  const Batch& batch = wrong.batch;
  const TokenIndices indices = token_indices(batch, settings.ignores_documents);
  WrongRows rows;
  rows.stream = (indices.row.ge(first) & indices.row.lt(last)).nonzero().squeeze(1);
  rows.rows = last - first;
  rows.columns = batch.padded_columns;
  rows.grid = (batch.padded_indices - first * batch.padded_columns).index_select(0, rows.stream);
  const auto on_grid = [&](const at::Tensor& values, int64_t fill) {
    at::Tensor grid = at::full({rows.rows * rows.columns}, fill, values.options());
    grid.index_copy_(0, rows.grid, values.index_select(0, rows.stream));
    return grid.view({rows.rows, rows.columns});
  };
  at::Tensor positions = settings.positions_by_column ? indices.column : batch.positions;
  if (settings.balanced_ranks > 0) positions = balanced_positions(batch, settings.balanced_ranks);
  if (settings.rope_restart.size > 0)
    positions = indices.in_sequence - chunk_starts(indices, settings.rope_restart);
  if (settings.padding_from_second_chunk.size > 0)
    positions = positions + late_padding(indices, batch.positions, settings.padding_from_second_chunk);
  rows.tokens = on_grid(batch.tokens, 0);
  const at::Tensor of_keys = positions + settings.key_offset + left_padding(indices) * settings.key_padding;
  const auto unless = [&](bool none, const at::Tensor& at) { return on_grid(none ? at * 0 : at, 0); };
  rows.positions = unless(settings.queries_not_rotated, positions);
  rows.key_positions = unless(settings.keys_not_rotated, of_keys);
  rows.sequence = on_grid(indices.sequence, -1);
  rows.in_sequence = on_grid(indices.in_sequence, 0);
  rows.key_is_seen = on_grid(wrong.hidden_key.logical_not(), 0);
  const auto cut = [&](const Cut& of) {
    return of.size > 0 ? on_grid(chunk_starts(indices, of), 0) : at::Tensor();
  };
  rows.own_chunk_only = cut(settings.own_chunk_only);
  rows.top_left = cut(settings.top_left);
  rows.sees_whole_chunk = cut(settings.sees_whole_chunk);
  rows.detached = cut(settings.detached);
  return rows;
}

WrongDecoder::WrongDecoder(const Model& model, const WrongSettings& settings, int64_t rope_length)
    : model_(model), config_(model.config()), settings_(settings), leaves_(model, settings) {
  if (!config_.linear_attention.empty() || config_.is_latent() || config_.is_compressed() ||
      config_.mixture.sigmoid_scores || config_.gemma4.global_head_dim > 0 || config_.has_residual_gates() ||
      has_stacked_experts(model))
    throw InputError("a {} model: the wrong engines have no {}", config_.family,
                     config_.is_latent()                  ? "latent attention"
                     : config_.is_compressed()            ? "attention to blocks of rows"
                     : config_.mixture.sigmoid_scores     ? "routers of sigmoids"
                     : config_.gemma4.global_head_dim > 0 ? "layers of two sizes"
                     : config_.has_residual_gates()       ? "gated residual streams"
                     : has_stacked_experts(model)         ? "experts in one tensor, row by row"
                                                          : "recurrent layers");
  for (int64_t& window : config_.windows) {
    if (window > 0) window = settings.ignores_windows ? 0 : window + settings.window_offset;
  }
  if (settings.no_attention_softcap) config_.attn_logit_softcapping = 0.0;
  const int64_t length = settings.rope_length > 0 ? settings.rope_length : rope_length;
  frequencies_ = frequencies_of(config_.rope, config_, length);
  if (config_.local_rope) local_frequencies_ = frequencies_of(*config_.local_rope, config_, length);
}

at::Tensor WrongDecoder::linear(const Linear& map, const at::Tensor& given) {
  const bool is_head = model_.has_head() && &map == &model_.head();
  const at::Tensor x = is_head ? given : narrow_input(given, map.weight->name, settings_.narrow_inputs);
  const at::Tensor weight = leaves_.matrix(*map.weight, map.first_row, is_head).t();
  at::Tensor y = at::matmul(x, weight);
  if (settings_.own_share == OwnShare::kFirstColumns) y = of_own_share(y, at::matmul(x, weight.detach()));
  if (map.bias != nullptr) {
    const at::Tensor bias = leaves_.vector(*map.bias, y);
    y = of_own_share(y + bias, y + bias.detach());
  }
  if (!map.adapter || !map.adapter->enabled || (is_head && settings_.head_adapter_bypassed))
    return y * map.output_scale;
  const LowRankAdapter& adapter = *map.adapter;
  double scale = settings_.adapter_scale_factor * (settings_.adapter_scale_one ? 1.0 : adapter.scale);
  scale *= std::pow(static_cast<double>(adapter.a->value.size(0)), settings_.adapter_rank_power);
  const auto own = [&](const at::Tensor& matrix) {
    return settings_.narrow == NarrowValues::kAdapters ? narrowed(matrix) : matrix;
  };
  const at::Tensor read = settings_.lost_path == LostPath::kAdapters ? x.detach() : x;
  const at::Tensor low = at::matmul(read, own(leaves_.matrix(*adapter.a)).t());
  at::Tensor delta = at::matmul(low, own(leaves_.matrix(*adapter.b, map.first_row)).t());
  if (adapter.bias != nullptr) delta = delta + leaves_.vector(*adapter.bias, delta);
  return (y + delta * scale) * map.output_scale;
}

at::Tensor WrongDecoder::norm(const RmsNorm& norm, const at::Tensor& x) {
  if (norm.weight == nullptr) return x;  // the layer has none there
  const bool by_head = norm.weight->value.dim() == 2;
  const at::Tensor weight = by_head ? leaves_.matrix(*norm.weight) : leaves_.vector(*norm.weight, x);
  const at::Tensor right = norm.adds_one ? weight + 1.0 : weight;
  const at::Tensor normalised = normalised_by(norm, x, false);
  const bool is_right = settings_.last_norm_is_right && &norm == &model_.norm();
  const WrongSlope slope = is_right ? WrongSlope::kNone : settings_.slope;
  if (slope == WrongSlope::kNormNone) return (normalised * right).detach();
  if (slope != WrongSlope::kNormConstant && slope != WrongSlope::kNormWeightless &&
      slope != WrongSlope::kNormOtherOne)
    return of_own_share(normalised * right, normalised * right.detach());
  at::Tensor times = right.detach();
  if (slope == WrongSlope::kNormWeightless) times = at::ones_like(times);
  if (slope == WrongSlope::kNormOtherOne) times = norm.adds_one ? times - 1.0 : times + 1.0;
  const at::Tensor sent = normalised_by(norm, x, slope == WrongSlope::kNormConstant) * times;
  return normalised.detach() * right + (sent - sent.detach());
}

/// Which of two results has a parameter's gradient: `kept` for the first half of the columns or heads, `lost`
/// for the others; where neither is among the dimensions `kept` for all.
at::Tensor WrongDecoder::of_own_share(const at::Tensor& kept, const at::Tensor& lost) const {
  const bool heads = settings_.own_share == OwnShare::kFirstHeads;
  if (settings_.own_share == OwnShare::kAll || kept.dim() < (heads ? 4 : 3)) return kept;
  const int64_t dimension = heads ? 2 : 1, half = kept.size(dimension) / 2;
  return at::cat({kept.slice(dimension, 0, half), lost.slice(dimension, half)}, dimension);
}

/// x over its root mean square, which is `constant` for the backward pass.
at::Tensor WrongDecoder::normalised_by(const RmsNorm& norm, const at::Tensor& x, bool constant) {
  const at::Tensor input = norm.centers ? x - x.mean(-1, true) : x;
  const at::Tensor scale = (input.square().mean(-1, true) + norm.eps).rsqrt();
  return input * (constant ? scale.detach() : scale);
}

/// What is added to what a part of the layer gives, whose `before` norms what that part reads.
at::Tensor WrongDecoder::residual(const at::Tensor& x, const RmsNorm& before, bool of_mlp) {
  const WrongResidual& wrong = settings_.residual;
  if (settings_.lost_path == (of_mlp ? LostPath::kResidualOfMlp : LostPath::kResidualOfAttention))
    return x.detach();
  if (wrong.how == WrongResidual::How::kRight || !(of_mlp ? wrong.before_mlp : wrong.before_attention))
    return x;
  if (wrong.how == WrongResidual::How::kTwice) return x * 2.0 - x.detach();
  if (before.weight == nullptr) return x;
  const at::Tensor weight = before.weight->value.to(at::kCPU, at::kDouble);
  const at::Tensor sent = normalised_by(before, x, false) * (before.adds_one ? weight + 1.0 : weight);
  return x.detach() + (sent - sent.detach());
}

at::Tensor WrongDecoder::embed(const at::Tensor& tokens) const {
  const at::Tensor value = model_.parameter("model.embed_tokens.weight").value.to(at::kCPU, at::kDouble);
  return value.index_select(0, tokens.flatten()).view({tokens.size(0), tokens.size(1), -1}) *
         config_.embedding_scale;
}

/// Heads [b, T, heads, E] rotated by `positions` [b, T].
at::Tensor WrongDecoder::rotated(at::Tensor heads, const at::Tensor& positions, bool local) const {
  const at::Tensor& frequencies = local ? local_frequencies_ : frequencies_;
  const double factor = local ? config_.local_rope->attention_factor : config_.rope.attention_factor;
  const at::Tensor angles = (positions.to(at::kDouble).unsqueeze(-1) * frequencies).unsqueeze(2);
  const at::Tensor cosine = angles.cos() * factor, sine = angles.sin() * factor;
  const int64_t half = frequencies.size(0);
  const auto turned = [&](const at::Tensor& by) {
    const at::Tensor a = heads.narrow(-1, 0, half), b = heads.narrow(-1, half, half);
    return at::cat({a * cosine - b * by, b * cosine + a * by, heads.slice(-1, 2 * half)}, -1);
  };
  if (config_.rope_interleaved) {  // in another order, which scores do not depend on
    const at::Tensor pairs = heads.narrow(-1, 0, 2 * half).unflatten(-1, {half, 2});
    heads = at::cat({pairs.select(-1, 0), pairs.select(-1, 1), heads.slice(-1, 2 * half)}, -1);
  }
  if (settings_.slope != WrongSlope::kTurnsFurther) return turned(sine);
  const at::Tensor back = turned(-sine);
  return back + (turned(sine) - back).detach();
}

/// Which keys a query sees, [b, 1, T, T].
at::Tensor WrongDecoder::mask(const WrongRows& rows, int64_t window) const {
  at::Tensor query = of_queries(rows.in_sequence);
  const at::Tensor key = of_keys(rows.in_sequence);
  if (rows.top_left.defined()) query = query - of_queries(rows.top_left);
  at::Tensor seen = key <= query;
  if (rows.sees_whole_chunk.defined())
    seen = seen | (of_queries(rows.sees_whole_chunk) == of_keys(rows.sees_whole_chunk));
  if (rows.own_chunk_only.defined()) seen = seen & (key >= of_queries(rows.own_chunk_only));
  if (window > 0) seen = seen & (query - key < window);
  seen = seen & (of_queries(rows.sequence) == of_keys(rows.sequence)) & of_keys(rows.key_is_seen);
  // What sees nothing, padding above all, sees itself: a softmax over nothing is NaN.
  const at::Tensor itself = at::eye(rows.columns, at::TensorOptions(at::kBool));
  return (seen | (itself & seen.any(-1, true).logical_not())).unsqueeze(1);
}

at::Tensor WrongDecoder::attention(int64_t index, const at::Tensor& x, const WrongRows& rows) {
  const DecoderLayer::Weights& w = model_.layers()[static_cast<size_t>(index)].weights();
  const int64_t window = config_.windows[static_cast<size_t>(index)];
  const bool local = model_.config().local_rope && model_.config().has_window(index);
  const bool bare = settings_.missing_norm == MissingNorm::kHeads;
  const bool late = norms_rotated_heads(config_) != settings_.other_norm_order;
  const auto heads = [&](const Linear& map, const RmsNorm& of) {
    at::Tensor projected = linear(map, x);
    if (settings_.slope == WrongSlope::kAttentionShard)
      projected = of_one_shard(projected, linear(map, x.detach()));
    const bool full_width = config_.qk_norm_full_width;
    if (full_width && !bare) projected = norm(of, projected);
    projected = projected.view({rows.rows, rows.columns, -1, config_.head_dim});
    return full_width || bare || late ? projected : norm(of, projected);
  };
  at::Tensor q = heads(*w.q_proj, w.q_norm), k = heads(*w.k_proj, w.k_norm), v = heads(*w.v_proj, {});
  if (config_.rotates(index)) {
    q = rotated(q, rows.positions, local);
    k = rotated(k, rows.key_positions, local);
  }
  if (late && !bare) q = norm(w.q_norm, q), k = norm(w.k_norm, k);
  if (config_.query_scale_beta != 0.0) {
    const at::Tensor turns = rows.positions.div(config_.query_scale_original, "floor").to(at::kDouble);
    q = q * (turns.log1p() * config_.query_scale_beta + 1.0).unsqueeze(-1).unsqueeze(-1);
  }
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  v = v.transpose(1, 2);
  const int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
  k = k.repeat_interleave(group, 1);
  v = v.repeat_interleave(group, 1);
  at::Tensor same;  // whether a key is of the query's own chunk, where the gradient ends at its edge
  if (rows.detached.defined()) same = (of_queries(rows.detached) == of_keys(rows.detached)).unsqueeze(1);

  at::Tensor scores = at::matmul(q, k.transpose(2, 3));
  if (same.defined()) scores = at::where(same, scores, at::matmul(q, k.detach().transpose(2, 3)));
  scores = scores * config_.attention_scale;
  if (const double cap = config_.attn_logit_softcapping; cap > 0.0) scores = at::tanh(scores / cap) * cap;
  const double nothing = -std::numeric_limits<double>::infinity();
  scores = scores.masked_fill(mask(rows, window).logical_not(), nothing);
  if (w.sinks != nullptr && !settings_.no_sinks) {
    const at::Tensor sinks = leaves_.matrix(*w.sinks).view({1, -1, 1, 1});
    scores = at::cat({scores, sinks.expand({rows.rows, -1, rows.columns, 1})}, -1);
  }
  const at::Tensor weights = at::softmax(scores, -1).narrow(-1, 0, rows.columns);
  at::Tensor attended = same.defined()
                            ? at::matmul(weights * same, v) + at::matmul(weights * ~same, v.detach())
                            : at::matmul(weights, v);
  attended = attended.transpose(1, 2).reshape({rows.rows, rows.columns, -1});
  return linear(*w.o_proj, attended);
}

/// One half of the columns of `kept`, and the other of `lost`, through which no gradient flows.
at::Tensor WrongDecoder::of_one_shard(const at::Tensor& kept, const at::Tensor& lost) const {
  const int64_t half = kept.size(-1) / 2;
  return settings_.second_shard ? at::cat({lost.slice(-1, 0, half), kept.slice(-1, half)}, -1)
                                : at::cat({kept.slice(-1, 0, half), lost.slice(-1, half)}, -1);
}

at::Tensor WrongDecoder::mlp(const GatedMlp& mlp, const at::Tensor& x) {
  if (mlp.gate_up_proj != nullptr) {
    const double alpha = mlp.clamped.alpha;
    const double limit =
        settings_.no_gate_clamps ? std::numeric_limits<double>::infinity() : mlp.clamped.limit;
    const at::Tensor both = linear(*mlp.gate_up_proj, x);
    const at::Tensor gate = both.slice(-1, 0, {}, 2).clamp_max(limit);
    const at::Tensor up = both.slice(-1, 1, {}, 2).clamp(-limit, limit);
    return linear(*mlp.down_proj, gate * at::sigmoid(gate * alpha) * (up + 1.0));
  }
  const WrongSlope slope =
      settings_.slope_of_experts_alone && !in_experts_ ? WrongSlope::kNone : settings_.slope;
  at::Tensor gated = linear(*mlp.gate_proj, slope == WrongSlope::kUpAlone ? x.detach() : x);
  if (slope == WrongSlope::kMlpShard) gated = of_one_shard(gated, linear(*mlp.gate_proj, x.detach()));
  at::Tensor active = mlp.activation == Activation::kSilu   ? at::silu(gated)
                      : mlp.activation == Activation::kRelu ? at::relu(gated)
                      : mlp.activation == Activation::kGelu ? at::gelu(gated, "none")
                                                            : at::gelu(gated, "tanh");
  at::Tensor up = linear(*mlp.up_proj, slope == WrongSlope::kGateAlone ? x.detach() : x);
  if (slope == WrongSlope::kMlpShard) up = of_one_shard(up, linear(*mlp.up_proj, x.detach()));
  at::Tensor sent;  // whose gradient the gate has
  if (slope == WrongSlope::kGateConstant) active = active.detach();
  if (slope == WrongSlope::kUpConstant) up = up.detach();
  if (slope == WrongSlope::kGateLinear) sent = gated * (active / gated).detach();
  const bool exact_gelu = mlp.activation == Activation::kGelu;
  if (slope == WrongSlope::kOtherGelu && (exact_gelu || mlp.activation == Activation::kGeluTanh))
    sent = at::gelu(gated, exact_gelu ? "tanh" : "none");
  if (sent.defined()) active = sent + (active - sent).detach();
  return linear(*mlp.down_proj, active * up);
}

at::Tensor WrongDecoder::mixture(const Mixture& mixture, const at::Tensor& x, const WrongRows& rows,
                                 LayerOutput& output) {
  // Of real tokens alone: the others' choices would count.
  const at::Tensor tokens = x.reshape({-1, x.size(-1)}).index_select(0, rows.grid);
  at::Tensor scores = linear(*mixture.router, tokens);
  if (settings_.narrow == NarrowValues::kRouter) scores = narrowed(scores);
  const at::Tensor probabilities = at::softmax(scores, -1);
  auto [top, choices] = probabilities.topk(mixture.experts_per_token, -1);
  const bool constant = settings_.slope == WrongSlope::kRouterSum;
  if (mixture.normalise) top = top / (constant ? top.sum(-1, true).detach() : top.sum(-1, true));
  if (settings_.slope == WrongSlope::kRouterNone) top = top.detach();
  const at::Tensor chosen = at::zeros_like(probabilities).scatter(1, choices, 1.0).detach();
  const at::Tensor weights = at::zeros_like(probabilities).scatter(1, choices, top);
  const at::Tensor counted = rows.counted.defined() ? rows.counted : at::ones({tokens.size(0)}, at::kDouble);
  output.probabilities = at::matmul(counted, probabilities);
  output.choices = at::matmul(counted, chosen);
  output.routed = counted.sum().item<double>();
  at::Tensor y = at::zeros_like(tokens);
  for (size_t expert = 0; expert < mixture.experts.size(); ++expert) {
    const at::Tensor mine = chosen.select(1, static_cast<int64_t>(expert)).nonzero().squeeze(1);
    if (mine.numel() == 0) continue;
    in_experts_ = true;
    const at::Tensor result = mlp(mixture.experts[expert], tokens.index_select(0, mine));
    in_experts_ = false;
    const at::Tensor weight = weights.select(1, static_cast<int64_t>(expert)).index_select(0, mine);
    y = y.index_add(0, mine, result * weight.unsqueeze(1));
  }
  if (mixture.shared_expert_gate != nullptr)
    y = y + at::sigmoid(linear(*mixture.shared_expert_gate, tokens)) * mlp(mixture.shared_expert, tokens);
  return at::zeros({rows.rows * rows.columns, x.size(-1)}, x.options())
      .index_copy(0, rows.grid, y)
      .view(x.sizes());
}

WrongDecoder::LayerOutput WrongDecoder::layer(int64_t index, const at::Tensor& x, const WrongRows& rows) {
  const DecoderLayer::Weights& w = model_.layers()[static_cast<size_t>(index)].weights();
  LayerOutput output;
  const RmsNorm none;
  const LostPath lost = settings_.lost_path;
  const auto read = [&](LostPath path, const at::Tensor& given) {
    return lost == path ? given.detach() : given;
  };
  const bool bare_attention = settings_.missing_norm == MissingNorm::kAfterAttention,
             bare_mlp = settings_.missing_norm == MissingNorm::kAfterMlp;
  const at::Tensor middle =
      residual(x, w.before_attention, false) +
      norm(bare_attention ? none : w.after_attention,
           attention(index, norm(w.before_attention, read(LostPath::kAttention, x)), rows));
  const at::Tensor normed = norm(w.before_mlp, read(LostPath::kMlp, config_.parallel ? x : middle));
  const at::Tensor fed =
      config_.is_sparse(index) ? mixture(w.mixture, normed, rows, output) : mlp(w.mlp, normed);
  output.hidden = residual(middle, w.before_mlp, true) + norm(bare_mlp ? none : w.after_mlp, fed);
  return output;
}

at::Tensor WrongDecoder::final_norm(const at::Tensor& hidden) {
  return settings_.missing_norm == MissingNorm::kFinal ? hidden : norm(model_.norm(), hidden);
}

at::Tensor WrongDecoder::logits(const at::Tensor& normed) {
  const at::Tensor logits = linear(model_.head(), normed);
  const double cap = config_.final_logit_softcapping;
  return cap > 0.0 ? at::tanh(logits / cap) * cap : logits;
}

at::Tensor WrongDecoder::values(const at::Tensor& normed) {
  return linear(model_.value_head(), normed).squeeze(1);
}

}  // namespace streambp::verify
