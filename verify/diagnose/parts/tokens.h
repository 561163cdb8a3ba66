// The gradient as a sum over scored tokens. That of the LM head is the sum of c (e_y - p) h^T over tokens,
// where only the c depend on the loss: one forward pass and one system of equations tell how much each token
// counts.
#pragma once

#include <vector>

#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

struct TokenFit {
  bool applies = false;    // the head's gradient is one of these sums, whatever the loss
  bool head_fits = false;  // targets and forward pass are right: a sum of them is the head's gradient
  std::vector<Explanation> explanations;  // where all other gradients follow from it
};

/// Of the gradients in `gauge`, whose head's is among `gradients`. `chunks`: sizes of chunks to try in
/// addition to powers of two and even parts.
TokenFit explain_by_tokens(const WrongSubject& subject, const Tensors& gradients, const FitGauge& gauge,
                           const PartsLimits& limits, const std::vector<int64_t>& chunks);

}  // namespace streambp::verify
