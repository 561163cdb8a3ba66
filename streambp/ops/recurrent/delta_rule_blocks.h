// The two passes of the gated delta rule over its blocks, op by op in ATen: for devices without kernels of
// ours, and a second opinion for tests. The formulas stand in delta_rule_blocks.cc.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/recurrent/delta_rule.h"

namespace streambp {

/// What both passes read: see gated_delta_rule.
struct DeltaRuleInputs {
  at::Tensor mixed, log_decay, beta;
  DeltaRuleSizes sizes;
  std::vector<int64_t> offsets;
  at::Tensor state_before;  // may be undefined
};

/// What a forward pass is to give.
enum class DeltaRuleWants {
  kState,       // the last state
  kHidden,      // and the outputs
  kForBackward  // and the state at the beginning of each block
};

struct DeltaRuleResult {
  at::Tensor hidden;  // [n, value_heads, value_dim], or undefined
  at::Tensor state;   // [value_heads, key_dim, value_dim]
  at::Tensor states;  // [blocks of all sequences, value_heads, key_dim, value_dim], or undefined
};

struct DeltaRuleGradients {
  at::Tensor mixed, log_decay, beta;  // as the inputs
};

/// How many blocks the sequences have together; each sequence's last may be short.
int64_t delta_rule_blocks(const std::vector<int64_t>& offsets);

DeltaRuleResult delta_rule_forward_plain(const DeltaRuleInputs& in, DeltaRuleWants wants);

/// `states` of the forward pass; d_hidden [n, value_heads, value_dim], d_state [value_heads, key_dim,
/// value_dim], each undefined where nothing reaches it. What reaches the state before is added to
/// d_state_before, where that is defined.
DeltaRuleGradients delta_rule_backward_plain(const DeltaRuleInputs& in, const at::Tensor& states,
                                             const at::Tensor& d_hidden, const at::Tensor& d_state,
                                             const at::Tensor& d_state_before);

}  // namespace streambp
