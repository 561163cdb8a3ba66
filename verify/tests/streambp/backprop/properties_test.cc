// Whatever the model's sizes, the rows, the objective, the method and its settings: the gradients are those
// of standard back-propagation and of the reference, in float64.
//   RC_PARAMS="max_success=1000 seed=7" properties_test
#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "verify/equality/check.h"
#include "verify/tests/streambp/backprop/random_case.h"

namespace streambp::verify {
namespace {

/// What the cases reached, to be printed where all held.
struct Reached {
  int cases = 0;
  int64_t comparisons = 0;
  int magnified = 0;  // cases beyond kStandardLimit
  double to_standard = 0.0, to_reference = 0.0;
  std::string worst;  // command

  void add(const RandomCase& random, const EqualityRow& row) {
    ++cases;
    comparisons += row.comparisons;
    to_reference = worse(to_reference, row.reference_error);
    if (!(row.standard_error <= kStandardLimit)) {
      ++magnified;
      return;
    }
    if (worst.empty() || is_worse(row.standard_error, to_standard)) worst = random.command();
    to_standard = worse(to_standard, row.standard_error);
  }
};

std::string failure_text(const EqualityRow& row) {
  std::string text;
  for (const EqualityFailure& failure : row.failures)
    text += fmt::format("{}: {}\n  {}\n", failure.what, failure.error, failure.repeat);
  return text;
}

TEST(Properties, EveryPassHasTheGradientsOfStandardBackPropagation) {
  Reached reached;
  const bool held = rc::check("a random pass has the gradients of standard back-propagation", [&] {
    const RandomCase random = *random_case();
    const EqualityRow row = check_row(random.options, random.name);
    RC_TAG(random.options.methods.front());
    if (!row.failures.empty()) RC_FAIL(failure_text(row));
    reached.add(random, row);
  });
  ASSERT_TRUE(held);
  fmt::print(
      "{} cases, {} comparisons; worst {} to standard, {} to the reference; farthest from standard:\n  {}\n",
      reached.cases, reached.comparisons, error_text(reached.to_standard), error_text(reached.to_reference),
      reached.worst);
  fmt::print("{} others more than {} from standard, where standard is as far from the reference\n",
             reached.magnified, error_text(kStandardLimit));
}

}  // namespace
}  // namespace streambp::verify
