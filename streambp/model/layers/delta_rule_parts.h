// What a recurrent layer's rule is put together from: for delta_rule_layer.cc, and for mistakes that others
// make in one of them.
#pragma once

#include "streambp/model/layers/delta_rule_layer.h"

namespace streambp::delta_rule_parts {

/// What the projections of x give.
struct Projected {
  at::Tensor qkv;  // [n, 2 Hk Dk + Hv Dv]
  at::Tensor z;    // [n, Hv Dv]
  at::Tensor a;    // [n, Hv], or of each channel [n, Hv Dk]
  at::Tensor b;    // [n, Hv]; undefined: Mamba-2 has none
};
Projected project(const DeltaRule& rule, const at::Tensor& x);

/// The convolution's weights, each of some channels, and their number.
struct ConvPart {
  Parameter* weight;
  int64_t channels;
};
std::vector<ConvPart> conv_parts(const DeltaRule& rule);

/// What the recurrence reads next to the convolution's rows.
struct Gates {
  at::Tensor log_decay, beta;
};
Gates gates(const DeltaRule& rule, const Projected& projected);

DeltaRuleSizes sizes_of(const DeltaRuleSettings& settings);

/// What the recurrence gives, gated by z and normed as the rule has it, [n, Hv Dv].
at::Tensor gated(const DeltaRule& rule, const at::Tensor& hidden, const at::Tensor& z);

}  // namespace streambp::delta_rule_parts
