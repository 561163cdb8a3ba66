#include "streambp/model/delta_rule_layer.h"

#include <algorithm>

#include "streambp/ops/delta_gates.h"

namespace streambp {
namespace {

/// What the projections of x give.
struct Projected {
  at::Tensor qkv;  // [n, 2 Hk Dk + Hv Dv]
  at::Tensor z;    // [n, Hv Dv]
  at::Tensor b;    // [n, Hv]
  at::Tensor a;    // [n, Hv]
};

/// Qwen3-Next's: the columns of one key head after another, [query, key, values, gates] and [b, a].
Projected take_apart(const DeltaRuleSettings& sizes, const at::Tensor& qkvz, const at::Tensor& ba) {
  const int64_t rows = qkvz.size(0);
  const int64_t group = sizes.value_heads / sizes.key_heads;
  const int64_t values = group * sizes.value_head_dim;
  const auto parts =
      qkvz.view({rows, sizes.key_heads, -1})
          .split_with_sizes({sizes.key_head_dim, sizes.key_head_dim, values, values}, /*dim=*/2);
  const auto gates = ba.view({rows, sizes.key_heads, -1}).split(group, /*dim=*/2);
  const auto flat = [&](const at::Tensor& part) { return part.reshape({rows, -1}); };
  return {at::cat({flat(parts[0]), flat(parts[1]), flat(parts[2])}, /*dim=*/1), flat(parts[3]),
          flat(gates[0]), flat(gates[1])};
}

Projected project(const DeltaRule& rule, const at::Tensor& x) {
  const std::vector<at::Tensor> all = linear(x, rule.maps());
  if (rule.in_proj_qkvz != nullptr) return take_apart(rule.settings, all[0], all[1]);
  return {all[0], all[1], all[2], all[3]};
}

DeltaRuleSizes sizes_of(const DeltaRuleSettings& settings) {
  return {settings.key_heads, settings.value_heads, settings.key_head_dim, settings.value_head_dim};
}

}  // namespace

std::vector<const Linear*> DeltaRule::maps() const {
  if (in_proj_qkvz != nullptr) return {in_proj_qkvz, in_proj_ba};
  return {in_proj_qkv, in_proj_z, in_proj_b, in_proj_a};
}

bool DeltaRule::trainable() const {
  if (conv1d == nullptr) return false;
  const auto maps = this->maps();
  return std::any_of(maps.begin(), maps.end(), [](const Linear* map) { return map->trainable(); }) ||
         conv1d->trainable() || a_log->trainable() || dt_bias->trainable() || norm->trainable();
}

DeltaOutput delta_rule_forward(const DeltaRule& rule, const at::Tensor& x,
                               const std::vector<int64_t>& offsets, const DeltaBefore& before) {
  at::Tensor z;
  DeltaRuleOutput out;
  at::Tensor tail;
  {
    Projected projected = project(rule, x);
    z = std::move(projected.z);
    ConvOutput conv = causal_conv_silu(projected.qkv, *rule.conv1d, offsets, before.tail);
    projected.qkv.reset();
    tail = std::move(conv.tail);
    out = gated_delta_rule(conv.hidden, log_decay(projected.a, *rule.a_log, *rule.dt_bias),
                           projected.b.sigmoid(), sizes_of(rule.settings), offsets, before.state);
  }
  return {gated_rms_norm(out.hidden, z, *rule.norm, rule.norm_eps), {std::move(out.state), std::move(tail)}};
}

DeltaCarry delta_rule_carry(const DeltaRule& rule, const at::Tensor& x, const std::vector<int64_t>& offsets,
                            const DeltaBefore& before) {
  // The gates of the output are projected with the rest: Qwen3-Next's are in one map.
  Projected projected = rule.in_proj_qkvz != nullptr ? project(rule, x) : Projected{};
  if (rule.in_proj_qkvz == nullptr) {
    const auto all = linear(x, {rule.in_proj_qkv, rule.in_proj_b, rule.in_proj_a});
    projected = {all[0], {}, all[1], all[2]};
  }
  ConvOutput conv = causal_conv_silu(projected.qkv, *rule.conv1d, offsets, before.tail);
  return {delta_rule_state(conv.hidden, log_decay(projected.a, *rule.a_log, *rule.dt_bias),
                           projected.b.sigmoid(), sizes_of(rule.settings), offsets, before.state),
          conv.tail};
}

}  // namespace streambp
