// GRPO's loss with ratios that are clipped otherwise, and with other estimates of its KL term.
#pragma once

#include <vector>

#include "verify/diagnose/parts/other_sums.h"

namespace streambp::verify {

/// Of the subject's loss, whose slopes are `own`, without its KL term `policy`, and without that and any
/// clipping `never_clipped`.
std::vector<OtherSums> other_clips(const WrongSubject& subject, const ScoredValues& values,
                                   const at::Tensor& own, const at::Tensor& policy,
                                   const at::Tensor& never_clipped);

/// The KL term's own slopes, which are `divergence` by k3, by other estimates.
std::vector<OtherSums> other_divergences(const WrongSubject& subject, const ScoredValues& values,
                                         const at::Tensor& divergence);

}  // namespace streambp::verify
