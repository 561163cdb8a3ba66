// The gated delta rule by our own CPU kernels (cpu/recurrent/delta_rule.h).
#pragma once

#include "streambp/ops/recurrent/delta_rule_blocks.h"

namespace streambp {

/// Whether they take rows of this device and dtype: with a decay for each channel, those whose heads have
/// keys of their own.
bool has_fused_delta_rule(const DeltaRuleInputs& in);

/// As delta_rule_forward_plain and delta_rule_backward_plain. Key heads of all sequences are shared out among
/// threads; each is one thread's, so that sums are the same on any number of them.
DeltaRuleResult delta_rule_forward_fused(const DeltaRuleInputs& in, DeltaRuleWants wants);
DeltaRuleGradients delta_rule_backward_fused(const DeltaRuleInputs& in, const at::Tensor& states,
                                             const at::Tensor& d_hidden, const at::Tensor& d_state,
                                             const at::Tensor& d_state_before);

}  // namespace streambp
