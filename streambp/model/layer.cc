#include "streambp/model/layer.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/config/family.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/norm_rope.h"

namespace streambp {

DecoderLayer::DecoderLayer(const Config& config, int64_t index, Weights weights)
    : config_(config),
      index_(index),
      head_dim_(config.head_dim_of(index)),
      sparse_(config.is_sparse(index)),
      recurrent_(config.is_recurrent(index)),
      rotates_(config.rotates(index)),
      own_rope_(config.local_rope && config.has_window(index)),
      attention_{{config.attention_scale, config.attn_logit_softcapping},
                 config.windows[static_cast<size_t>(index)],
                 weights.sinks},
      weights_(std::move(weights)) {}

namespace {

/// x times a constant [1].
at::Tensor scaled(const at::Tensor& x, const at::Tensor& factor) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = x * factor;
  }
  return differentiable({x}, std::move(y), "layer_scalar", [factor](std::vector<at::Tensor>&& dy) {
    return std::vector<at::Tensor>{dy[0] * factor};
  });
}

}  // namespace

const RopeTable& DecoderLayer::rope_of(const Rows& rows, bool of_queries) const {
  if (own_rope_) return rows.local_rope;
  return of_queries && rows.query_rope.cosine.defined() ? rows.query_rope : rows.rope;
}

at::Tensor DecoderLayer::normed(const at::Tensor& x, const RmsNorm& norm, const ModelOps& ops) {
  return norm.weight == nullptr ? x : ops.rms_norm(x, norm);
}

at::Tensor DecoderLayer::attention_input(const at::Tensor& x, const Rows& rows, const ModelOps& ops) const {
  if (!weights_.block.is_there()) return mixer_input(x, ops);
  return ops.rms_norm(at::cat({x, rows.embedded}, /*dim=*/1), weights_.block.input_norm);
}

at::Tensor DecoderLayer::heads(const at::Tensor& projected, const RmsNorm& norm, const RopeTable& table,
                               const ModelOps& ops, bool shared) const {
  at::Tensor x = projected;
  const RmsNorm* of_heads = norm.weight == nullptr ? nullptr : &norm;
  if (of_heads != nullptr && config_.qk_norm_full_width) {
    x = ops.rms_norm(x, norm);
    of_heads = nullptr;
    shared = false;
  }
  x = x.view({-1, x.size(1) / head_dim_, head_dim_});
  if (!rotates_) return of_heads == nullptr ? x : ops.rms_norm(x, *of_heads);
  if (config_.rope_interleaved) {
    if (of_heads != nullptr) x = ops.rms_norm(x, *of_heads);  // in the order of its weight
    x = split_pairs(x, config_.rotary_dim);
    return ops.normed_rope(x, nullptr, table);
  }
  // The ops may write over what they rotate.
  if (of_heads != nullptr && norms_rotated_heads(config_)) {
    x = shared ? streambp::normed_rope(x, nullptr, table) : ops.normed_rope(x, nullptr, table);
    return ops.rms_norm(x, *of_heads);
  }
  return shared ? streambp::normed_rope(x, of_heads, table) : ops.normed_rope(x, of_heads, table);
}

at::Tensor DecoderLayer::query_heads(const at::Tensor& projected, const Rows& rows, const ModelOps& ops,
                                     bool shared) const {
  return heads(projected, weights_.q_norm, rope_of(rows, /*of_queries=*/true), ops, shared);
}

KeysValues DecoderLayer::key_value_heads(const at::Tensor& keys, const at::Tensor& values, const Rows& rows,
                                         const ModelOps& ops, bool shared) const {
  const at::Tensor of_heads = values.view({-1, config_.key_value_heads_of(index_), head_dim_});
  const bool both_read = shared || values.is_same(keys);
  return {heads(keys, weights_.k_norm, rope_of(rows, /*of_queries=*/false), ops, both_read),
          normed(of_heads, weights_.v_norm, ops)};
}

KeysValues DecoderLayer::projected_keys_values(const at::Tensor& input, const KeysValues& known) const {
  if (weights_.v_proj != nullptr) {
    const auto both = linear(input, {weights_.k_proj, weights_.v_proj}, {known.keys, known.values});
    return {both[0], both[1]};
  }
  const at::Tensor keys = linear(input, {weights_.k_proj}, {known.keys}).front();
  return {keys, keys};
}

KeysValues DecoderLayer::keys_values(const at::Tensor& x, const Rows& rows,
                                     const KeysValues& projected) const {
  const MemoryScope scope("attention");
  if (config_.is_latent()) {
    LatentRows of_rows = latent_rows(weights_.latent, mixer_input(x, own_ops()),
                                     rope_of(rows, /*of_queries=*/false), own_ops());
    return {std::move(of_rows.latents), std::move(of_rows.rotated)};
  }
  if (config_.is_compressed()) {
    CompressedRows of_rows = compressed_rows(weights_.compressed, mixer_input(x, own_ops()),
                                             rope_of(rows, /*of_queries=*/false), own_ops());
    return {std::move(of_rows.keys), std::move(of_rows.raw)};
  }
  const bool known = projected.keys.defined();
  if (known && !needs_backward({x}))
    return key_value_heads(projected.keys, projected.values, rows, own_ops(), known);
  const at::Tensor input = attention_input(x, rows, own_ops());
  const KeysValues both = projected_keys_values(input, projected);
  return key_value_heads(both.keys, both.values, rows, own_ops(), known);
}

Carry DecoderLayer::state_after(const at::Tensor& x, const Rows& rows, const Before& before) const {
  if (!has_mixer()) return {};
  const MemoryScope scope("attention");
  Carry own;
  at::Tensor tail;
  const at::Tensor read = weights_.block.is_there() ? with_block(x, rows, before, {}, own.attention)
                                                    : with_ngrams(x, rows, before, tail);
  own.recurrent =
      delta_rule_carry(weights_.delta_rule, mixer_input(read, own_ops()), rows.offsets, before.recurrent);
  own.recurrent.ngram_tail = std::move(tail);
  return own;
}

LayerOutput DecoderLayer::forward(const at::Tensor& given, const Rows& rows, const Before& before,
                                  const LayerRun& run, Activations known) const {
  Carry own;
  at::Tensor tail;
  const at::Tensor x = with_ngrams(given, rows, before, tail);
  const at::Tensor residual = with_recurrence(x, rows, before, run, own, known.attention_half);
  at::Tensor attended = has_mixer() ? mixed(x, rows, before, run, own, known) : at::Tensor();
  LayerOutput result = finish(x, residual, std::move(attended), rows, run, std::move(known));
  own.recurrent.ngram_tail = std::move(tail);
  result.own = std::move(own);
  return result;
}

at::Tensor DecoderLayer::with_recurrence(const at::Tensor& x, const Rows& rows, const Before& before,
                                         const LayerRun& run, Carry& own, const at::Tensor& half) const {
  if (!recurrent_ || !attends() || weights_.block.is_there()) return x;
  const MemoryScope scope("attention");
  DeltaOutput output =
      delta_rule_forward(weights_.delta_rule, mixer_input(x, run.ops), rows.offsets, before.recurrent);
  own.recurrent = std::move(output.own);
  return linear_add(x, output.hidden, *weights_.recurrent_out, half.defined() ? unread(x) : half);
}

LayerOutput DecoderLayer::finish(const at::Tensor& x, const at::Tensor& residual, at::Tensor attended,
                                 const Rows& rows, const LayerRun& run, Activations known) const {
  LayerOutput result;
  const at::Tensor middle = has_mixer() ? add_attention(residual, attended, known.attention_half) : x;
  attended.reset();
  known.attention_half =
      run.keeps_attention_half && has_mixer() ? known.attention_half.detach() : at::Tensor();
  const bool with_projections = run.keeps_projections || known.projections.gate.defined();
  result.hidden = feed_forward(middle, x, rows, run, with_projections ? &known.projections : nullptr);
  if (!run.keeps_projections) known.projections = {};
  result.activations = std::move(known);
  return result;
}

at::Tensor DecoderLayer::mixed(const at::Tensor& x, const Rows& rows, const Before& before,
                               const LayerRun& run, Carry& own, Activations& known) const {
  const MemoryScope scope("attention");
  if (attends() && config_.is_latent()) return attend_latents(x, rows, before, run, own.attention).flatten(1);
  if (attends() && config_.is_compressed())
    return attend_compressed(x, rows, before.attention, run, own.attention);
  const bool has_block = weights_.block.is_there();
  if (attends() && !has_block) return attend(x, rows, before, run, own.attention, known).flatten(1);
  const at::Tensor read = has_block ? with_block(x, rows, before, run, own.attention) : x;
  DeltaOutput output =
      delta_rule_forward(weights_.delta_rule, mixer_input(read, run.ops), rows.offsets, before.recurrent);
  own.recurrent = std::move(output.own);
  return std::move(output.hidden);
}

at::Tensor DecoderLayer::with_block(const at::Tensor& x, const Rows& rows, const Before& before,
                                    const LayerRun& run, KeysValues& own) const {
  Activations unused;  // another pass needs what follows attention too
  return add_block(x, attend(x, rows, before, run, own, unused).flatten(1), weights_.block);
}

at::Tensor DecoderLayer::attend_latents(const at::Tensor& x, const Rows& rows, const Before& before,
                                        const LayerRun& run, KeysValues& own) const {
  LatentRows of_rows{before.shared.keys, before.shared.values};  // of a layer that has none of its own
  const PickingRows picking{rows.picks, config_.picker_of(index_), rows.begin, rows.sequence_begin};
  at::Tensor attended =
      latent_forward(weights_.latent, mixer_input(x, run.ops),
                     {rope_of(rows, /*of_queries=*/false), rows.log_positions, rows.query_scales},
                     rows.offsets, before.attention, attention_, run.ops, picking, of_rows);
  own = {std::move(of_rows.latents), std::move(of_rows.rotated)};
  return attended;
}

at::Tensor DecoderLayer::attend_compressed(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                           const LayerRun& run, KeysValues& own) const {
  CompressedRows of_rows;
  const PickingRows picking{rows.picks, index_, rows.begin, rows.sequence_begin};
  at::Tensor attended = compressed_forward(weights_.compressed, mixer_input(x, run.ops),
                                           {rope_of(rows, /*of_queries=*/false), rows.stream_rope},
                                           rows.offsets, prefix, attention_, run.ops, picking, of_rows);
  own = {std::move(of_rows.keys), std::move(of_rows.raw)};
  return attended;
}

std::pair<at::Tensor, at::Tensor> DecoderLayer::queries_and_gates(const at::Tensor& projected) const {
  if (!config_.attention_output_gate) return {projected, {}};
  const auto parts = projected.view({projected.size(0), -1, 2 * head_dim_}).split(head_dim_, /*dim=*/2);
  return {parts[0], parts[1]};
}

AttentionHeads DecoderLayer::attention_heads(const at::Tensor& x, const Rows& rows, const LayerRun& run,
                                             Activations& known, const Prefix& shared) const {
  const MemoryScope scope("attention");
  AttentionHeads heads;
  const at::Tensor input = attention_input(x, rows, run.ops);
  // Of one input, which is kept once: all maps that there are.
  std::vector<const Linear*> maps{weights_.q_proj};
  std::vector<at::Tensor> of_maps{known.queries};
  KeysValues& projected = known.projected;
  if (weights_.k_proj != nullptr) maps.push_back(weights_.k_proj), of_maps.push_back(projected.keys);
  if (weights_.v_proj != nullptr) maps.push_back(weights_.v_proj), of_maps.push_back(projected.values);
  if (weights_.output_gate != nullptr) maps.push_back(weights_.output_gate), of_maps.emplace_back();
  const auto all = linear(input, maps, of_maps);
  const bool is_read_too = run.keeps_projected || projected.keys.defined();
  const bool are_queries_read_too = run.keeps_queries || known.queries.defined();
  at::Tensor raw;
  std::tie(raw, heads.gates) = queries_and_gates(all[0]);
  heads.queries = query_heads(raw.flatten(1), rows, run.ops, are_queries_read_too);
  known.queries = run.keeps_queries ? all[0].detach() : at::Tensor();
  if (weights_.output_gate != nullptr)
    heads.gates = all.back().view({x.size(0), config_.query_heads_of(index_), -1});
  projected = {};
  if (weights_.k_proj == nullptr) {
    heads.own = {shared.keys, shared.values};
  } else {
    const at::Tensor& values = weights_.v_proj == nullptr ? all[1] : all[2];
    heads.own = key_value_heads(all[1], values, rows, run.ops, is_read_too);
    if (run.keeps_projected) projected = {all[1].detach(), values.detach()};
  }
  return heads;
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const Rows& rows, const Before& before,
                                const LayerRun& run, KeysValues& own, Activations& known) const {
  PickedRows picked;
  if (weights_.indexer.is_there()) {
    const PickingRows picking{rows.picks, index_, rows.begin, rows.sequence_begin};
    picked = picked_key_blocks(
        weights_.indexer, [&] { return mixer_input(x.detach(), own_ops()); },
        {rope_of(rows, /*of_queries=*/false), rows.stream_rope}, rows.offsets, picking);
  }
  AttentionHeads heads = attention_heads(x, rows, run, known, before.shared);
  own = std::move(heads.own);
  const at::Tensor attended =
      picked.picks.defined()
          ? picked_attention(heads.queries, own.keys, own.values, rows.offsets, before.attention, picked,
                             attention_.scoring.scale, known.attention)
          : attention(heads.queries, own.keys, own.values, rows.offsets, before.attention, attention_,
                      known.attention);
  return gated(attended, heads.gates);
}

LayerOutput DecoderLayer::after_attention(const at::Tensor& x, Activations known, const Rows& rows,
                                          const LayerRun& run) const {
  at::Tensor attended = known.attention.output;
  if (attended.defined()) {
    const Linear* const map = weights_.output_gate != nullptr ? weights_.output_gate
                              : config_.attention_output_gate ? weights_.q_proj
                                                              : nullptr;
    if (map != nullptr && (!known.attention_half.defined() || needs_backward({x}))) {
      const at::Tensor projected = map == weights_.q_proj ? known.queries : at::Tensor();
      const at::Tensor raw = linear(mixer_input(x, run.ops), {map}, {projected}).front();
      attended =
          gated(attended, weights_.output_gate != nullptr ? raw.view({attended.size(0), attended.size(1), -1})
                                                          : queries_and_gates(raw).second);
    }
    attended = attended.flatten(1);
  }
  return finish(x, x, std::move(attended), rows, run, std::move(known));
}

at::Tensor DecoderLayer::attention_half(const at::Tensor& given, const Rows& rows, const Before& before,
                                        const LayerRun& run, Carry& own) const {
  if (!has_mixer()) return given;
  Activations known;
  at::Tensor tail;
  const at::Tensor x = with_ngrams(given, rows, before, tail);
  const at::Tensor residual = with_recurrence(x, rows, before, run, own, known.attention_half);
  const at::Tensor attended = mixed(x, rows, before, run, own, known);
  own.recurrent.ngram_tail = std::move(tail);
  return add_attention(residual, attended, known.attention_half);
}

MixtureRun DecoderLayer::mixture_run(const Rows& rows, const LayerRun& run, bool graph_only) const {
  return {.layer = index_,
          .begin = rows.begin,
          .tokens = rows.tokens,
          .graph_only = graph_only,
          .balance = run.balance,
          .choices = run.choices,
          .router = run.router};
}

at::Tensor DecoderLayer::add_experts(const at::Tensor& middle, const at::Tensor& mlp, const Rows& rows,
                                     const LayerRun& run) const {
  const at::Tensor of_mlp = run.ops.rms_norm(mlp, weights_.after_mlp_alone);
  const at::Tensor of_router = run.ops.rms_norm(middle, weights_.router_norm);
  const at::Tensor experts = mixture({}, run.ops.rms_norm(middle, weights_.before_experts), weights_.mixture,
                                     mixture_run(rows, run, /*graph_only=*/false), of_router);
  return rms_norm_add(of_mlp, experts, weights_.after_experts);
}

at::Tensor DecoderLayer::feed_forward(const at::Tensor& middle, const at::Tensor& x, const Rows& rows,
                                      const LayerRun& run, GatedProjections* projections) const {
  if (!config_.has_mlp(index_)) return middle;
  const auto through = [&](const at::Tensor& residual, const at::Tensor& normed) {
    // What reads the output reads it again in the backward pass.
    const bool graph_only = run.graph_only && run.ops.skips_unread() && !config_.reads_outputs();
    if (config_.mixture.plain_latents && sparse_) return latent_experts(residual, normed, rows, run);
    if (weights_.into_experts != nullptr) return narrow_experts(normed, rows, run);
    if (weights_.mlp.down_proj == nullptr)
      return mixture(residual, normed, weights_.mixture, mixture_run(rows, run, graph_only));
    // What is kept is kept of our ops.
    return projections != nullptr && config_.can_store_gate_up(index_)
               ? gated_mlp(residual, normed, weights_.mlp, graph_only, projections)
               : run.ops.gated_mlp(residual, normed, weights_.mlp, graph_only);
  };
  // The layer's output is the caller's to name.
  at::Tensor input, raw;
  {
    const MemoryScope scope("MLP");
    const at::Tensor read = weights_.mlp_streams.is_there() ? read_streams(weights_.mlp_streams, middle)
                            : config_.has_streams()         ? sum_streams(middle, weights_.into_mlp)
                            : is_parallel()                 ? x
                                                            : middle;
    input = normed(read, weights_.before_mlp, run.ops);
    if (config_.reads_outputs()) raw = through({}, input);
  }
  if (!config_.reads_outputs()) return through(middle, input);
  input.reset();
  if (weights_.mlp_streams.is_there()) return give_to_streams(weights_.mlp_streams, middle, raw);
  if (config_.has_streams()) return add_to_streams(middle, raw, weights_.out_of_mlp);
  if (sparse_ && weights_.mlp.down_proj != nullptr) {
    const MemoryScope scope("MLP");
    raw = add_experts(middle, raw, rows, run);
  }
  if (weights_.mlp_residual.is_there())
    return gated_sum(middle, norm_of_scaled(raw, weights_.after_mlp), weights_.mlp_residual);
  at::Tensor y = rms_norm_add(middle, raw, weights_.after_mlp);
  if (weights_.per_layer.is_there())
    y = add_per_layer_input(y, rows.tokens, rows.embedded, weights_.per_layer);
  return weights_.layer_scalar == nullptr ? y : scaled(y, weights_.layer_scalar->value);
}

bool DecoderLayer::trainable() const {
  const Weights& w = weights_;
  if (w.delta_rule.trainable() || w.latent.trainable() || w.compressed.trainable() ||
      w.per_layer.trainable() || w.block.trainable() || w.attention_streams.trainable() ||
      w.mlp_streams.trainable() || w.ngrams.trainable() || w.attention_residual.trainable() ||
      w.mlp_residual.trainable())
    return true;
  const auto is_trained = [](const Linear* map) { return map != nullptr && map->trainable(); };
  for (const Linear* map :
       {w.q_proj, w.k_proj, w.v_proj, w.o_proj, w.output_gate, w.recurrent_out, w.mixture.router,
        w.mixture.shared_expert_gate, w.into_experts, w.out_of_experts}) {
    if (is_trained(map)) return true;
  }
  for (const RmsNorm* norm :
       {&w.before_attention, &w.q_norm, &w.k_norm, &w.after_attention, &w.before_mlp, &w.after_mlp,
        &w.router_norm, &w.after_mlp_alone, &w.before_experts, &w.after_experts, &w.mixture.output_norm}) {
    if (norm->weight != nullptr && norm->weight->trainable()) return true;
  }
  for (const StreamGates* gates : {&w.into_attention, &w.out_of_attention, &w.into_mlp, &w.out_of_mlp}) {
    if (gates->trainable()) return true;
  }
  if (w.sinks != nullptr && w.sinks->trainable()) return true;
  if (w.mlp.down_proj != nullptr && w.mlp.trainable()) return true;
  if (!sparse_) return false;
  if (w.mixture.expert_scale != nullptr && w.mixture.expert_scale->trainable()) return true;
  if (w.mixture.has_shared_expert() && w.mixture.shared_expert.trainable()) return true;
  return std::any_of(w.mixture.experts.begin(), w.mixture.experts.end(),
                     [](const GatedMlp& expert) { return expert.trainable(); });
}

}  // namespace streambp
