// The gradient as a sum of parts: of the rows of a batch, and of the terms of its loss. What multiple of each
// is in somebody's gradients is fitted by least squares, and needs no list of mistakes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// A name for what would give somebody's gradients, a sentence that says it, and how well it fits.
struct Explanation {
  std::string name;
  std::string sentence;
  Fit fit;
  bool named = true;  // false: weights of parts that no mistake is known to give
};

/// What a fit by parts has to reach to explain anything.
struct PartsLimits {
  double residual = 0.0;
  size_t parameters = 1;
};

/// Explanations of the gradients in `gauge` by parts of the subject's whose residual is within the limit, the
/// simplest first. Takes as long as about two passes, and one for each term that the loss might have besides.
std::vector<Explanation> explain_by_parts(const WrongSubject& subject, const FitGauge& gauge,
                                          const PartsLimits& limits);

}  // namespace streambp::verify
