// Parameters that are wrong alone, by parts of their own: as where the gradients of some are not averaged
// over the ranks.
#pragma once

#include <vector>

#include "verify/diagnose/locate.h"
#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// Explanations by parts of the gradients of those parameters that `location` says are wrong alone, with a
/// residual of at most `limit`.
std::vector<Explanation> explain_few(const WrongSubject& subject, const Tensors& gradients,
                                     const Tensors& truth, const Location& location, double limit);

}  // namespace streambp::verify
