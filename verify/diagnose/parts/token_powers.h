// Losses whose tokens are multiplied by a power of a number of their own: their probability, their ratio to
// the old policy or to the sampler, their place; and several options at once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "verify/diagnose/parts/other_sums.h"

namespace streambp::verify {

/// Several options at once with other values.
struct OptionChanges {
  std::string name, sentence;
  std::map<std::string, std::string> options;
};

/// Numbers among the options that are ignored together, and two of them each with the other's value.
std::vector<OptionChanges> changed_options(const ObjectiveKind& kind,
                                           const std::map<std::string, std::string>& given);

/// The option that multiplies a term of an objective's loss; empty: it has none.
std::string term_coefficient(const std::string& objective);

/// Of the subject's loss, whose slopes are `own` and without the term that `coefficient` multiplies `policy`:
/// powers multiply either part alone, or all of it.
std::vector<OtherSums> token_powers(const WrongSubject& subject, const ScoredValues& values,
                                    const at::Tensor& own, const at::Tensor& policy,
                                    const std::string& coefficient);

}  // namespace streambp::verify
