// A recurrent layer's rule with one of its parts left out or taken otherwise.
#pragma once

#include <map>
#include <vector>

#include "streambp/model/layers/delta_rule_layer.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// What the rule gives for x [n, D], [n, Hv Dv], with the mistakes of `wrong`, under autograd. `leaves`
/// receives a leaf for each parameter that is not the library's own ops to use. Throws InputError for a rule
/// that has no such part, and for more tokens than are worth running one by one.
at::Tensor wrong_recurrence(const DeltaRule& rule, const at::Tensor& x, const std::vector<int64_t>& offsets,
                            const WrongRecurrence& wrong, std::map<Parameter*, at::Tensor>& leaves);

}  // namespace streambp::verify
