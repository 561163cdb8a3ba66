// Which two mistakes at a time are worth making, by what each alone gives.
#pragma once

#include <vector>

#include "verify/diagnose/parts/fit.h"
#include "verify/diagnose/trials/hypotheses.h"

namespace streambp::verify {

struct SingleMistake {
  const Hypothesis* of;
  double residual;
  at::Tensor sketch;  // of its gradients, by FitGauge::measure
};

struct MistakePair {
  const Hypothesis* first;
  const Hypothesis* second;
  double residual;  // as if the two changed the gradients by the sum of what each does
};

/// Two small mistakes change the gradients by nearly the sum of what each does: of all pairs of `singles`,
/// those that come closest so to the gradients in `gauge`. A large mistake changes what a second one does:
/// with each of the two that explain most, some of every kind. `truth`: the sketch of what is right.
std::vector<MistakePair> likely_pairs(std::vector<SingleMistake> singles, const at::Tensor& truth,
                                      const FitGauge& gauge);

}  // namespace streambp::verify
