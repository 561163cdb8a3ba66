#include "streambp/model/layer.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/norm_rope.h"

namespace streambp {

DecoderLayer::DecoderLayer(const Config& config, int64_t index, Weights weights)
    : config_(config),
      index_(index),
      sparse_(config.is_sparse(index)),
      own_rope_(config.local_rope && config.has_window(index)),
      attention_{{config.attention_scale, config.attn_logit_softcapping},
                 config.windows[static_cast<size_t>(index)]},
      weights_(std::move(weights)) {}

const RopeTable& DecoderLayer::rope_of(const Rows& rows) const {
  return own_rope_ ? rows.local_rope : rows.rope;
}

at::Tensor DecoderLayer::query_heads(const at::Tensor& projected, const Rows& rows,
                                     const ModelOps& ops) const {
  return ops.normed_rope(projected.view({-1, config_.num_attention_heads, config_.head_dim}),
                         config_.qk_norm ? &weights_.q_norm : nullptr, rope_of(rows));
}

KeysValues DecoderLayer::key_value_heads(const at::Tensor& keys, const at::Tensor& values, const Rows& rows,
                                         const ModelOps& ops, bool shared) const {
  const at::Tensor heads = keys.view({-1, config_.num_key_value_heads, config_.head_dim});
  const RmsNorm* const norm = config_.qk_norm ? &weights_.k_norm : nullptr;
  // The ops may write over what they rotate.
  return {shared ? streambp::normed_rope(heads, norm, rope_of(rows))
                 : ops.normed_rope(heads, norm, rope_of(rows)),
          values.view({-1, config_.num_key_value_heads, config_.head_dim})};
}

KeysValues DecoderLayer::keys_values(const at::Tensor& x, const Rows& rows,
                                     const KeysValues& projected) const {
  const MemoryScope scope("attention");
  const bool known = projected.keys.defined();
  if (known && !needs_backward({x}))
    return key_value_heads(projected.keys, projected.values, rows, own_ops(), known);
  const at::Tensor normed = rms_norm(x, weights_.input_layernorm);
  const auto both = linear(normed, {weights_.k_proj, weights_.v_proj}, {projected.keys, projected.values});
  return key_value_heads(both[0], both[1], rows, own_ops(), known);
}

LayerOutput DecoderLayer::forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                  const LayerRun& run, Activations known) const {
  LayerOutput result;
  at::Tensor middle;
  {
    const at::Tensor attended = attend(x, rows, prefix, run, result.own, known);
    middle = add_attention(x, attended, known.attention_half);
  }
  known.attention_half = run.keeps_attention_half ? known.attention_half.detach() : at::Tensor();
  const bool with_projections = run.keeps_projections || known.projections.gate.defined();
  result.hidden = feed_forward(middle, rows, run, with_projections ? &known.projections : nullptr);
  if (!run.keeps_projections) known.projections = {};
  result.activations = std::move(known);
  return result;
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                const LayerRun& run, KeysValues& own, Activations& known) const {
  const MemoryScope scope("attention");
  at::Tensor queries;
  {
    const at::Tensor normed = run.ops.rms_norm(x, weights_.input_layernorm);
    const auto projected = linear(normed, {weights_.q_proj, weights_.k_proj, weights_.v_proj},
                                  {{}, known.projected.keys, known.projected.values});
    const bool shared = run.keeps_projected || known.projected.keys.defined();
    queries = query_heads(projected[0], rows, run.ops);
    own = key_value_heads(projected[1], projected[2], rows, run.ops, shared);
    known.projected = {};
    if (run.keeps_projected) known.projected = {projected[1].detach(), projected[2].detach()};
  }
  return attention(queries, own.keys, own.values, rows.offsets, prefix, attention_, known.attention);
}

at::Tensor DecoderLayer::after_attention(const at::Tensor& x, Activations known, const Rows& rows,
                                         const LayerRun& run) const {
  const at::Tensor middle = add_attention(x, known.attention.output, known.attention_half);
  return feed_forward(middle, rows, run, known.projections.gate.defined() ? &known.projections : nullptr);
}

at::Tensor DecoderLayer::attention_half(const at::Tensor& x, const Rows& rows, const LayerRun& run) const {
  KeysValues own;
  Activations known;
  const at::Tensor attended = attend(x, rows, {}, run, own, known);
  return add_attention(x, attended, known.attention_half);
}

at::Tensor DecoderLayer::add_attention(const at::Tensor& x, const at::Tensor& attended,
                                       at::Tensor& half) const {
  const MemoryScope scope("attention");
  if (attended.defined()) {
    const at::Tensor rows = attended.flatten(1);
    half = config_.sandwich_norms ? linear(rows, {weights_.o_proj}, {half}).front()
                                  : linear_add(x, rows, *weights_.o_proj, half);
  }
  return config_.sandwich_norms ? rms_norm_add(x, half, weights_.post_attention_layernorm) : half;
}

at::Tensor DecoderLayer::feed_forward(const at::Tensor& middle, const Rows& rows, const LayerRun& run,
                                      GatedProjections* projections) const {
  const auto through = [&](const at::Tensor& residual, const at::Tensor& x) {
    // A norm's backward pass reads what it has normalised.
    const bool graph_only = run.graph_only && run.ops.skips_unread() && !config_.sandwich_norms;
    if (sparse_) {
      return mixture(residual, x, weights_.mixture,
                     {.layer = index_,
                      .begin = rows.begin,
                      .graph_only = graph_only,
                      .balance = run.balance,
                      .choices = run.choices});
    }
    // What is kept is kept of our ops.
    return projections != nullptr ? gated_mlp(residual, x, weights_.mlp, graph_only, projections)
                                  : run.ops.gated_mlp(residual, x, weights_.mlp, graph_only);
  };
  // The layer's output is the caller's to name.
  at::Tensor normed, raw;
  {
    const MemoryScope scope("MLP");
    normed = run.ops.rms_norm(middle, config_.sandwich_norms ? weights_.pre_feedforward_layernorm
                                                             : weights_.post_attention_layernorm);
    if (config_.sandwich_norms) raw = through({}, normed);
  }
  if (!config_.sandwich_norms) return through(middle, normed);
  normed.reset();
  return rms_norm_add(middle, raw, weights_.post_feedforward_layernorm);
}

bool DecoderLayer::trainable() const {
  const Weights& w = weights_;
  const auto is_trained = [](const Linear* map) { return map != nullptr && map->trainable(); };
  for (const Linear* map : {w.q_proj, w.k_proj, w.v_proj, w.o_proj, w.mixture.router}) {
    if (is_trained(map)) return true;
  }
  for (const RmsNorm* norm : {&w.input_layernorm, &w.q_norm, &w.k_norm, &w.post_attention_layernorm,
                              &w.pre_feedforward_layernorm, &w.post_feedforward_layernorm}) {
    if (norm->weight != nullptr && norm->weight->trainable()) return true;
  }
  if (!sparse_) return w.mlp.trainable();
  return std::any_of(w.mixture.experts.begin(), w.mixture.experts.end(),
                     [](const GatedMlp& expert) { return expert.trainable(); });
}

}  // namespace streambp
