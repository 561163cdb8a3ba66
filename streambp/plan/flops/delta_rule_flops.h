// Floating-point operations of the gated delta rule, or of the state space in its place, without the maps
// around it.
#pragma once

#include "streambp/model/config/config.h"

namespace streambp::plan {

/// Of one token in one layer.
struct DeltaRuleFlops {
  /// What the recurrence itself is: three products of a [Dk, Dv] state with a vector for each head, of a
  /// state space two.
  double recurrence = 0.0;
  // What the blocks of ops/delta_rule.h execute.
  double forward = 0.0;
  double state = 0.0;     // without queries and outputs
  double backward = 0.0;  // with what it computes again
};

DeltaRuleFlops delta_rule_flops(const DeltaRuleSettings& rule);

}  // namespace streambp::plan
