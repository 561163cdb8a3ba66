#include "streambp/model/layer.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {

DecoderLayer::DecoderLayer(const Config& config, int64_t index, Weights weights)
    : config_(config),
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
                                         const ModelOps& ops) const {
  return {ops.normed_rope(keys.view({-1, config_.num_key_value_heads, config_.head_dim}),
                          config_.qk_norm ? &weights_.k_norm : nullptr, rope_of(rows)),
          values.view({-1, config_.num_key_value_heads, config_.head_dim})};
}

KeysValues DecoderLayer::keys_values(const at::Tensor& x, const Rows& rows) const {
  const MemoryScope scope("attention");
  const at::Tensor normed = rms_norm(x, weights_.input_layernorm);
  const auto projected = linear(normed, {weights_.k_proj, weights_.v_proj});
  return key_value_heads(projected[0], projected[1], rows, own_ops());
}

LayerOutput DecoderLayer::forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                  const LayerRun& run, AttentionBlock attended) const {
  KeysValues own;
  at::Tensor output = attend(x, rows, prefix, run.ops, own, attended);
  return {after_attention(x, std::move(output), rows, run), own, std::move(attended)};
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                const ModelOps& ops, KeysValues& own, AttentionBlock& attended) const {
  const MemoryScope scope("attention");
  at::Tensor queries;
  {
    const at::Tensor normed = ops.rms_norm(x, weights_.input_layernorm);
    const auto projected = linear(normed, {weights_.q_proj, weights_.k_proj, weights_.v_proj});
    queries = query_heads(projected[0], rows, ops);
    own = key_value_heads(projected[1], projected[2], rows, ops);
  }
  return attention(queries, own.keys, own.values, rows.offsets, prefix, attention_, attended);
}

at::Tensor DecoderLayer::after_attention(const at::Tensor& x, at::Tensor attended, const Rows& rows,
                                         const LayerRun& run) const {
  return feed_forward(add_attention(x, std::move(attended)), rows, run);
}

at::Tensor DecoderLayer::attention_half(const at::Tensor& x, const Rows& rows, const LayerRun& run) const {
  KeysValues own;
  AttentionBlock attended;
  return add_attention(x, attend(x, rows, {}, run.ops, own, attended));
}

at::Tensor DecoderLayer::add_attention(const at::Tensor& x, at::Tensor attended) const {
  attended = attended.flatten(1);
  const MemoryScope scope("attention");
  if (!config_.sandwich_norms) return linear_add(x, attended, *weights_.o_proj);
  attended = linear(attended, {weights_.o_proj}).front();
  return rms_norm_add(x, attended, weights_.post_attention_layernorm);
}

at::Tensor DecoderLayer::feed_forward(const at::Tensor& middle, const Rows& rows, const LayerRun& run) const {
  const auto through = [&](const at::Tensor& residual, const at::Tensor& x) {
    // A norm's backward pass reads what it has normalised.
    const bool graph_only = run.graph_only && run.ops.skips_unread() && !config_.sandwich_norms;
    return sparse_ ? mixture(residual, x, weights_.mixture, run.balance, graph_only, rows.begin)
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
