#include "streambp/plan/flops/delta_rule_flops.h"

#include "streambp/ops/cpu/recurrent/delta_rule.h"

namespace streambp::plan {

DeltaRuleFlops delta_rule_flops(const DeltaRuleSettings& rule) {
  if (rule.convolution_alone) return {};
  const auto key = static_cast<double>(rule.key_head_dim), value = static_cast<double>(rule.value_head_dim);
  const auto block = static_cast<double>(cpu::kDeltaBlock);
  const double heads = 2.0 * static_cast<double>(rule.value_heads);  // two operations a multiplication
  const double state = key * value;
  // As the CPU's kernels run a block: what depends on keys and queries alone is shared by the value heads of
  // a task, and a triangle is half a square.
  const cpu::DeltaRuleHeads sizes{rule.key_heads, rule.value_heads / rule.key_heads, rule.key_head_dim,
                                  rule.value_head_dim, !rule.state_space};
  const double shared =
      block * key * static_cast<double>(sizes.tasks()) / static_cast<double>(rule.value_heads);
  const double half = block * (key + value) / 2.0;
  DeltaRuleFlops flops;
  if (rule.state_space) {
    const double triangle = block * value / 2.0;
    flops.recurrence = heads * 2.0 * state;
    flops.state = heads * state;
    flops.forward = heads * (shared + triangle + 2.0 * state);
    flops.backward = heads * (3.0 * shared + 3.0 * triangle + 4.0 * state);
    return flops;
  }
  if (rule.channel_gates) {
    // Of each head its own, and pairs of tokens once (cpu/recurrent/channel_delta_rule.cc): decays are
    // multiplied in too.
    const double triangle = block * key / 2.0;
    flops.recurrence = heads * 3.0 * state;
    flops.state = heads * (triangle + half + 2.0 * state);
    flops.forward = heads * (2.0 * triangle + half + block * value + 3.0 * state);
    flops.backward = heads * (6.0 * triangle + 4.0 * half + 2.0 * block * value + 7.0 * state);
    return flops;
  }
  flops.recurrence = heads * 3.0 * state;
  flops.state = heads * (shared + half + 2.0 * state);
  flops.forward = heads * (2.0 * shared + half + block * value + 3.0 * state);
  flops.backward = heads * (6.0 * shared + 4.0 * half + 2.0 * block * value + 7.0 * state);
  return flops;
}

}  // namespace streambp::plan
