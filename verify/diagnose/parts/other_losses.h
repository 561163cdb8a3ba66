// Losses that are not the subject's, by their slopes alone: where the forward pass is right, how much each
// scored token counts in somebody's gradients is known, and what another option, reference or divisor would
// make it takes no pass to say.
#pragma once

#include <string>
#include <vector>

#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// d loss / d log-probability of a batch's scored tokens, as somebody's gradients show it, [M] each.
struct SeenSlopes {
  at::Tensor values;
  at::Tensor errors;  // how far each may be off
};

struct OtherLoss {
  std::string name;
  std::string sentence;
  at::Tensor slopes;    // [M]
  double factor = 1.0;  // of all of them, besides
};

/// Losses whose slopes are `seen`, up to a factor: first one thing that is another than in the subject's,
/// then two. `values` are those of the subject's own forward pass (Linearised::values); `chunks` as in
/// hypotheses().
std::vector<OtherLoss> other_losses(const WrongSubject& subject, const ScoredValues& values,
                                    const SeenSlopes& seen, const std::vector<int64_t>& chunks);

}  // namespace streambp::verify
