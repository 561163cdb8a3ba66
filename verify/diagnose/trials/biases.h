// Mistakes in rounding, where noise is as large as they are: what they do to gradients is a direction, in
// which noise has next to nothing.
#pragma once

#include <functional>
#include <vector>

#include "verify/diagnose/parts/parts.h"
#include "verify/diagnose/trials/hypotheses.h"

namespace streambp::verify {

struct BiasSubject {
  const WrongSubject& subject;
  const FitGauge& gauge;
  const Tensors& truth;
  const std::vector<Tensors>& noise;  // correct gradients in the given ones' precision
  double residual;                    // of that noise
};

/// Of the hypotheses about sums. `tried` counts those that were made.
std::vector<Explanation> explain_biases(
    const BiasSubject& of, const std::vector<Hypothesis>& hypotheses,
    const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run, size_t& tried);

}  // namespace streambp::verify
