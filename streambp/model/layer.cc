#include "streambp/model/layer.h"

#include <algorithm>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/norm_rope.h"

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

at::Tensor DecoderLayer::query_heads(const at::Tensor& projected, const Rows& rows) const {
  // The projection is read here alone: it may be overwritten.
  return normed_rope(projected.view({-1, config_.num_attention_heads, config_.head_dim}),
                     config_.qk_norm ? &weights_.q_norm : nullptr, rope_of(rows), rows.keep_all,
                     /*overwrite=*/true);
}

KeysValues DecoderLayer::key_value_heads(const at::Tensor& keys, const at::Tensor& values,
                                         const Rows& rows) const {
  return {normed_rope(keys.view({-1, config_.num_key_value_heads, config_.head_dim}),
                      config_.qk_norm ? &weights_.k_norm : nullptr, rope_of(rows), rows.keep_all,
                      /*overwrite=*/true),
          values.view({-1, config_.num_key_value_heads, config_.head_dim})};
}

KeysValues DecoderLayer::keys_values(const at::Tensor& x, const Rows& rows) const {
  const MemoryScope scope("attention");
  const at::Tensor normed = rms_norm(x, weights_.input_layernorm);
  const auto projected = linear(normed, {weights_.k_proj, weights_.v_proj});
  return key_value_heads(projected[0], projected[1], rows);
}

LayerOutput DecoderLayer::forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix,
                                  AttentionBlock attended) const {
  KeysValues own;
  at::Tensor output = attend(x, rows, prefix, own, attended);
  return {after_attention(x, std::move(output), rows), own, std::move(attended)};
}

at::Tensor DecoderLayer::attend(const at::Tensor& x, const Rows& rows, const Prefix& prefix, KeysValues& own,
                                AttentionBlock& attended) const {
  const MemoryScope scope("attention");
  at::Tensor queries;
  {
    const at::Tensor normed = rms_norm(x, weights_.input_layernorm, rows.keep_all);
    const auto projected = linear(normed, {weights_.q_proj, weights_.k_proj, weights_.v_proj});
    queries = query_heads(projected[0], rows);
    own = key_value_heads(projected[1], projected[2], rows);
  }
  return attention(queries, own.keys, own.values, rows.offsets, prefix, attention_, attended);
}

at::Tensor DecoderLayer::after_attention(const at::Tensor& x, at::Tensor attended, const Rows& rows) const {
  return feed_forward(add_attention(x, std::move(attended)), rows);
}

at::Tensor DecoderLayer::attention_half(const at::Tensor& x, const Rows& rows) const {
  KeysValues own;
  AttentionBlock attended;
  return add_attention(x, attend(x, rows, {}, own, attended));
}

at::Tensor DecoderLayer::add_attention(const at::Tensor& x, at::Tensor attended) const {
  attended = attended.flatten(1);
  const MemoryScope scope("attention");
  if (!config_.sandwich_norms) return linear_add(x, attended, *weights_.o_proj);
  attended = linear(attended, {weights_.o_proj}).front();
  return rms_norm_add(x, attended, weights_.post_attention_layernorm);
}

at::Tensor DecoderLayer::feed_forward(const at::Tensor& middle, const Rows& rows) const {
  const auto through = [&](const at::Tensor& residual, const at::Tensor& x) {
    // A norm's backward pass reads what it has normalised; a graph that keeps all keeps this too.
    const bool graph_only = rows.graph_only && !rows.keep_all && !config_.sandwich_norms;
    return sparse_ ? mixture(residual, x, weights_.mixture, rows.balance, graph_only, rows.begin)
                   : gated_mlp(residual, x, weights_.mlp, rows.keep_all, graph_only);
  };
  // The layer's output is the caller's to name.
  at::Tensor normed, raw;
  {
    const MemoryScope scope("MLP");
    normed = rms_norm(
        middle,
        config_.sandwich_norms ? weights_.pre_feedforward_layernorm : weights_.post_attention_layernorm,
        rows.keep_all);
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
