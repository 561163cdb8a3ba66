// Losses whose tokens are multiplied by a power of a number of their own: their probability, their ratio to the old policy
// or to the sampler, their place.
#pragma once

#include <vector>

#include "verify/diagnose/parts/other_sums.h"

namespace streambp::verify {

/// Of the subject's loss, whose slopes are `own` and without its KL term `policy`: powers multiply that part alone, or
/// all of it.
std::vector<OtherSums> token_powers(const WrongSubject& subject, const ScoredValues& values, const at::Tensor& own,
                                    const at::Tensor& policy);

}  // namespace streambp::verify
