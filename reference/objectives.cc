#include "reference/objectives.h"

#include "reference/ops.h"
#include "reference/require.h"

namespace streambp::reference {

Objective sft(double divisor) {
  return [divisor](Tape&, const Var& log_probabilities) {
    require(divisor > 0.0, "sft", "expected a positive divisor, got " + std::to_string(divisor));
    return scale(sum(log_probabilities), -1.0 / divisor);
  };
}

}  // namespace streambp::reference
