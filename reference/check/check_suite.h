// What the lists of checks share: how a case is put together, and the operations written a second time as
// plain loops over entries in extended precision. Used by check_*.cc only.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "reference/check/case.h"
#include "reference/config.h"

namespace streambp::STREAMBP_REFERENCE {

using Vars = std::vector<Var>;
using Matrices = std::vector<DoubleMatrix>;
using Expected = std::function<DoubleMatrix(const Matrices&)>;

/// Extended precision: an expected value is then wrong by less than what it judges.
using Real = long double;

/// Has each case visited, and hands out a new seed, and so new numbers, for every one.
class Suite {
 public:
  Suite(std::uint64_t seed, Visit visit) : seed_(seed), visit_(std::move(visit)) {}

  DoubleMatrix matrix(Index rows, Index cols, double low = -1.5, double high = 1.5) {
    return random_matrix(rows, cols, ++seed_, low, high);
  }

  /// The case is called "<name> <shapes of the inputs>".
  void check(const std::string& name, const Function& f, const Matrices& inputs, Expected expected,
             CheckOptions options = {});

 private:
  std::uint64_t seed_;
  Visit visit_;
};

/// A rows x cols matrix of entry(i, j), rounded to double.
DoubleMatrix build(Index rows, Index cols, const std::function<Real(Index, Index)>& entry);

/// "50", "0.0015"
std::string number_text(double x);

/// How far one token's choice of experts, given the router's row p, is from another one: the smallest lead of
/// the last that is chosen over the first that is not, in units of the router's logits or less. Of
/// probabilities it is the logarithm's, of a sigmoid router's corrected scores, and of its groups, four times
/// the difference, because no sigmoid is steeper than 1/4.
double lead_of_choice(const MixtureSettings& mixture, const DoubleMatrix& p, const DoubleMatrix& correction);

void check_elementwise_ops(Suite& suite);
void check_matrix_ops(Suite& suite);
void check_layer_ops(Suite& suite);
void check_softmax_ops(Suite& suite);
void check_divergences(Suite& suite);
void check_attention(Suite& suite);
void check_mixture(Suite& suite);
void check_recurrence(Suite& suite);
void check_objectives(Suite& suite);
void check_preference(Suite& suite);
void check_trained_rope(Suite& suite);

}  // namespace streambp::STREAMBP_REFERENCE
