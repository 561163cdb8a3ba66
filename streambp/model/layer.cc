#include "streambp/model/layer.h"

#include <cmath>

#include "streambp/ops/mlp.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

at::Tensor DecoderLayer::query_heads(const at::Tensor& projected, const Rows& rows) const {
  at::Tensor queries = projected.view({-1, config_.num_attention_heads, config_.head_dim});
  if (config_.qk_norm) queries = rms_norm(queries, *weights_.q_norm, config_.rms_norm_eps);
  return rope(queries, rows.rope);
}

KeysValues DecoderLayer::key_value_heads(const at::Tensor& keys, const at::Tensor& values,
                                         const Rows& rows) const {
  at::Tensor key_heads = keys.view({-1, config_.num_key_value_heads, config_.head_dim});
  if (config_.qk_norm) key_heads = rms_norm(key_heads, *weights_.k_norm, config_.rms_norm_eps);
  return {rope(key_heads, rows.rope), values.view({-1, config_.num_key_value_heads, config_.head_dim})};
}

KeysValues DecoderLayer::keys_values(const at::Tensor& x, const Rows& rows) const {
  const at::Tensor normed = rms_norm(x, *weights_.input_layernorm, config_.rms_norm_eps);
  const auto projected = linear(normed, {weights_.k_proj, weights_.v_proj});
  return key_value_heads(projected[0], projected[1], rows);
}

LayerOutput DecoderLayer::forward(const at::Tensor& x, const Rows& rows, const Prefix& prefix) const {
  at::Tensor queries;
  KeysValues own;
  {
    const at::Tensor normed = rms_norm(x, *weights_.input_layernorm, config_.rms_norm_eps);
    const auto projected = linear(normed, {weights_.q_proj, weights_.k_proj, weights_.v_proj});
    queries = query_heads(projected[0], rows);
    own = key_value_heads(projected[1], projected[2], rows);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const at::Tensor attended = attention(queries, own.keys, own.values, rows.offsets, prefix, scale);
  queries.reset();
  const at::Tensor middle = linear_add(x, attended.flatten(1), *weights_.o_proj);
  const at::Tensor normed = rms_norm(middle, *weights_.post_attention_layernorm, config_.rms_norm_eps);
  return {gated_mlp(middle, normed, *weights_.gate_proj, *weights_.up_proj, *weights_.down_proj), own};
}

bool DecoderLayer::trainable() const {
  const Weights& w = weights_;
  const auto norm_trainable = [](const Parameter* norm) { return norm != nullptr && norm->trainable(); };
  for (const Linear* map : {w.q_proj, w.k_proj, w.v_proj, w.o_proj, w.gate_proj, w.up_proj, w.down_proj}) {
    if (map->trainable()) return true;
  }
  return norm_trainable(w.input_layernorm) || norm_trainable(w.post_attention_layernorm) ||
         norm_trainable(w.q_norm) || norm_trainable(w.k_norm);
}

}  // namespace streambp
