#include "streambp/model/layers/delta_rule_layer.h"

#include <algorithm>

#include "streambp/model/layers/delta_rule_parts.h"
#include "streambp/ops/recurrent/delta_gates.h"

namespace streambp {
namespace {

using namespace delta_rule_parts;

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
          flat(gates[1]), flat(gates[0])};
}

/// The columns that x, B and C are made of, [n, channels], times Falcon-H1's factors.
at::Tensor with_factors(const DeltaRule& rule, const at::Tensor& qkv) {
  if (!rule.scales_channels) return qkv;
  const DeltaRuleSettings& sizes = rule.settings;
  const auto part = [&](int64_t size, size_t index) {
    return at::full({size}, sizes.in_multipliers[index], qkv.options());
  };
  return qkv * at::cat({part(sizes.values(), 1), part(sizes.keys(), 2), part(sizes.keys(), 3)});
}

/// Kimi Linear's, without the gates of the output where they are not wanted.
Projected project_by_channels(const DeltaRule& rule, const at::Tensor& x, bool wants_gates) {
  std::vector<const Linear*> maps{rule.q_proj, rule.k_proj, rule.v_proj, rule.in_proj_b, rule.in_proj_a};
  if (wants_gates) maps.push_back(rule.in_proj_z);
  const std::vector<at::Tensor> all = linear(x, maps);
  return {at::cat({all[0], all[1], all[2]}, /*dim=*/1),
          wants_gates ? linear(all[5], {rule.g_b_proj}).front() : at::Tensor(),
          linear(all[4], {rule.f_b_proj}).front(), all[3]};
}

/// Of qkv [n, channels].
ConvOutput short_convolution(const DeltaRule& rule, const at::Tensor& qkv,
                             const std::vector<int64_t>& offsets, const TailBefore& before) {
  const std::vector<ConvPart> parts = conv_parts(rule);
  if (parts.size() == 1) return causal_conv_silu(qkv, *rule.conv1d, offsets, before, rule.conv_bias);
  const auto part_of = [](const at::Tensor& x, int64_t first, int64_t channels) {
    return x.defined() ? x.narrow(1, first, channels) : x;
  };
  std::vector<at::Tensor> hidden, tails;
  int64_t first = 0;
  for (const ConvPart& part : parts) {
    ConvOutput output = causal_conv_silu(
        part_of(qkv, first, part.channels), *part.weight, offsets,
        {part_of(before.tail, first, part.channels), part_of(before.gradient, first, part.channels)});
    hidden.push_back(std::move(output.hidden));
    tails.push_back(std::move(output.tail));
    first += part.channels;
  }
  return {at::cat(hidden, /*dim=*/1), at::cat(tails, /*dim=*/1)};
}

/// LFM2's: conv(b x) between its gates b and z, [n, D].
ConvOutput convolved(const DeltaRule& rule, const at::Tensor& x, const at::Tensor& b,
                     const std::vector<int64_t>& offsets, const TailBefore& before) {
  return causal_conv(b * x, *rule.conv1d, offsets, before, rule.conv_bias);
}

}  // namespace

namespace delta_rule_parts {

Projected project(const DeltaRule& rule, const at::Tensor& x) {
  if (rule.settings.channel_gates) return project_by_channels(rule, x, /*wants_gates=*/true);
  const std::vector<at::Tensor> all = linear(x, rule.maps());
  if (rule.in_proj_qkvz != nullptr) return take_apart(rule.settings, all[0], all[1]);
  if (rule.in_proj_b == nullptr) return {with_factors(rule, all[0]), all[1], all[2], {}};
  return {all[0], all[1], all[3], all[2]};
}

DeltaRuleSizes sizes_of(const DeltaRuleSettings& settings) {
  return {settings.key_heads,      settings.value_heads,  settings.key_head_dim,
          settings.value_head_dim, !settings.state_space, settings.channel_gates};
}

std::vector<ConvPart> conv_parts(const DeltaRule& rule) {
  const DeltaRuleSettings& sizes = rule.settings;
  if (rule.k_conv1d == nullptr) return {{rule.conv1d, sizes.channels()}};
  return {{rule.conv1d, sizes.keys()}, {rule.k_conv1d, sizes.keys()}, {rule.v_conv1d, sizes.values()}};
}

Gates gates(const DeltaRule& rule, const Projected& projected) {
  const DeltaRuleSettings& settings = rule.settings;
  if (!settings.state_space)
    return {log_decay(projected.a, *rule.a_log, *rule.dt_bias, settings.decay_bound), projected.b.sigmoid()};
  const at::Tensor step =
      time_step(projected.a, *rule.dt_bias, settings.time_step_low, settings.time_step_high);
  return {decay_of_step(step, *rule.a_log), step};
}

at::Tensor gated(const DeltaRule& rule, const at::Tensor& hidden, const at::Tensor& z) {
  if (!rule.norms_before_gate.empty()) {
    const auto groups = static_cast<int64_t>(rule.norms_before_gate.size());
    std::vector<at::Tensor> normed = hidden.flatten(1).chunk(groups, /*dim=*/1);
    for (size_t i = 0; i < normed.size(); ++i)
      normed[i] = rms_norm(normed[i].contiguous(), rule.norms_before_gate[i]);
    return at::cat(normed, /*dim=*/1) * at::silu(z);
  }
  if (rule.norm == nullptr) return hidden.flatten(1) * at::silu(z);
  return rule.settings.state_space
             ? norm_of_gated(hidden, z, *rule.norm, rule.settings.key_heads, rule.norm_eps)
             : gated_rms_norm(hidden, z, *rule.norm, rule.norm_eps,
                              rule.settings.channel_gates || rule.settings.logistic_gate ? NormGate::kLogistic
                                                                                         : NormGate::kSilu);
}

}  // namespace delta_rule_parts

std::vector<const Linear*> DeltaRule::maps() const {
  if (q_proj != nullptr) return {q_proj, k_proj, v_proj, in_proj_b, in_proj_a, in_proj_z};
  if (in_proj_qkvz != nullptr) return {in_proj_qkvz, in_proj_ba};
  if (in_proj_b == nullptr) return {in_proj_qkv, in_proj_z, in_proj_a};
  if (in_proj_a == nullptr) return {in_proj_qkv, in_proj_z, in_proj_b};
  return {in_proj_qkv, in_proj_z, in_proj_b, in_proj_a};
}

std::vector<const Linear*> DeltaRule::second_maps() const {
  return f_b_proj != nullptr ? std::vector{f_b_proj, g_b_proj} : std::vector<const Linear*>{};
}

bool DeltaRule::trainable() const {
  if (conv1d == nullptr) return false;
  std::vector<const Linear*> maps = this->maps();
  for (const Linear* map : second_maps()) maps.push_back(map);
  const auto own = {conv1d, k_conv1d, v_conv1d, a_log, dt_bias, norm, conv_bias, skip};
  return std::any_of(maps.begin(), maps.end(), [](const Linear* map) { return map->trainable(); }) ||
         std::any_of(
             own.begin(), own.end(),
             [](const Parameter* parameter) { return parameter != nullptr && parameter->trainable(); }) ||
         std::any_of(norms_before_gate.begin(), norms_before_gate.end(),
                     [](const RmsNorm& norm) { return norm.weight->trainable(); });
}

DeltaOutput delta_rule_forward(const DeltaRule& rule, const at::Tensor& x,
                               const std::vector<int64_t>& offsets, const DeltaBefore& before,
                               const std::vector<int64_t>& of_convolution) {
  if (rule.settings.convolution_alone) {
    const auto all = linear(x, rule.maps());
    ConvOutput conv =
        convolved(rule, all[0], all[2], of_convolution.empty() ? offsets : of_convolution, before.tail);
    return {conv.hidden * all[1], {{}, std::move(conv.tail)}};
  }
  at::Tensor z;
  DeltaRuleOutput out;
  at::Tensor tail;
  {
    Projected projected = project(rule, x);
    z = std::move(projected.z);
    ConvOutput conv = short_convolution(rule, projected.qkv,
                                        of_convolution.empty() ? offsets : of_convolution, before.tail);
    projected.qkv.reset();
    tail = std::move(conv.tail);
    const auto [decay, beta] = gates(rule, projected);
    const DeltaRuleSizes sizes = sizes_of(rule.settings);
    out = gated_delta_rule(conv.hidden, decay, beta, sizes, offsets, before.state);
    if (rule.skip != nullptr)
      out.hidden =
          add_skip(out.hidden, conv.hidden.narrow(1, sizes.first_value(), sizes.values()), *rule.skip);
  }
  return {gated(rule, out.hidden, z), {std::move(out.state), std::move(tail)}};
}

DeltaCarry delta_rule_carry(const DeltaRule& rule, const at::Tensor& x, const std::vector<int64_t>& offsets,
                            const DeltaBefore& before) {
  if (rule.settings.convolution_alone) {
    const auto both = linear(x, {rule.in_proj_qkv, rule.in_proj_b});
    return {{}, convolved(rule, both[0], both[1], offsets, before.tail).tail};
  }
  Projected projected;
  if (rule.settings.channel_gates) {
    projected = project_by_channels(rule, x, /*wants_gates=*/false);
  } else if (rule.in_proj_qkvz != nullptr) {
    projected = project(rule, x);  // the gates of the output with the rest: they are in one map
  } else {
    std::vector<const Linear*> maps = rule.maps();
    maps.erase(maps.begin() + 1);
    const auto all = linear(x, maps);
    projected = {with_factors(rule, all[0]), {}, all.back(), all.size() > 2 ? all[1] : at::Tensor()};
  }
  ConvOutput conv = short_convolution(rule, projected.qkv, offsets, before.tail);
  const auto [decay, beta] = gates(rule, projected);
  return {delta_rule_state(conv.hidden, decay, beta, sizes_of(rule.settings), offsets, before.state),
          conv.tail};
}

}  // namespace streambp
