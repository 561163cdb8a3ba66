// How the reference is itself checked: one call puts a function of matrices through everything that is
// expected of an operation. Findings are returned, so that a test suite and a command-line driver can use the
// same checks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/check/case.h"
#include "reference/check/truth.h"
#include "reference/model.h"

namespace streambp::STREAMBP_REFERENCE {

/// See check_case; an error is 0 where nothing was given to compare with.
struct CheckResult {
  std::string name;
  double value_error = 0.0;
  double gradient_error = 0.0;
  double chain_rule_error = 0.0;
  double difference_error = 0.0;
  double limit = 0.0;     // of the first two
  std::size_t steps = 0;  // complex steps that were taken
  bool passed = false;
  std::string detail;  // what failed, or the entry with the largest gradient error
};

/// Permitted errors of chain rules in extended precision, and of what differences can tell. Those of values
/// and gradients in doubles are a case's own, CheckOptions::limit.
inline constexpr double kChainRuleLimit = 1e-15;
inline constexpr double kDifferenceLimit = 1e-9;

/// Where the functions bend and have no derivative, and so no case.
inline constexpr const char* kKinks =
    "the minimum and maximum of equal numbers, a number at the limit of a clip, a ratio at its bound, an "
    "exponent at "
    "80, a hinge at 1, odds at 1 - 2^-53, KTO's reference point at 0, an entropy at the quantile, and "
    "choices of "
    "experts and orders of pairs that are ties";

/// Checks a case:
/// - Value: max |f - expected| <= limit max |expected|, for the second formula and for the truth's value.
/// - Gradients, projected on a random cotangent: for every input max |a - t| <= limit scale_of(max |t|, max
/// |f|),
///   with a the tape's gradient and t the truth's.
/// - Chain rule: the truth's chain_rule_error <= kChainRuleLimit. Truth and tape are one source, so that the
///   first two find what rounds wrongly and this one what is derived wrongly.
/// - Differences: for every input difference_error (differences.h) <= kDifferenceLimit. They see dependence
/// that
///   an operation holds constant, where a complex step ends, and need no truth.
/// - A cotangent of zeros gives a gradient of exactly zeros.
/// - A NaN in the entry on which the result depends most gives a NaN in the result.
/// - A repetition on a new tape is bit-equal, in value and gradient.
/// - Every one of options.refused is refused.
/// Errors of a failed comparison of shapes are reported as NaN, which passes no gate. A truth of another name
/// fails the case.
CheckResult check_case(const Case& c, const Truth* truth);

/// The same without a truth, for functions that are compiled in doubles alone.
CheckResult check_gradient(const std::string& name, const Function& f, const std::vector<Matrix>& inputs,
                           const CheckOptions& options = {});

/// The cases of list_ops, and those of list_models with so many `entries` of a parameter. Takes half a
/// minute.
inline constexpr std::size_t kModelEntries = 6;
std::vector<CheckResult> check_all_ops(std::uint64_t seed);
std::vector<CheckResult> check_models(std::uint64_t seed, std::size_t entries = kModelEntries);

}  // namespace streambp::STREAMBP_REFERENCE
