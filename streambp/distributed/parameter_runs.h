// Which parameters ranks exchange as one run of numbers.
#pragma once

#include <vector>

#include "streambp/ops/parameter.h"

namespace streambp {

/// The parameters of `group` by runs whose values have one dtype, and whose gradients have: of a pass in
/// bfloat16 those of vectors are summed in float32 (backprop/wide_gradients.h). Of most groups, one run.
std::vector<std::vector<Parameter*>> parameter_runs(const std::vector<Parameter*>& group);

}  // namespace streambp
