// Losses of sums over sequences that are taken otherwise: means for sums, pairs of other rows, ratios of
// sums.
#pragma once

#include <string>
#include <vector>

#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

struct OtherSums {
  std::string name;
  std::string sentence;
  at::Tensor slopes;  // d loss / d log-probability of the scored tokens, [M]
};

/// Of the subject's loss, at the values of its own forward pass.
std::vector<OtherSums> other_sums(const WrongSubject& subject, const ScoredValues& values);

}  // namespace streambp::verify
