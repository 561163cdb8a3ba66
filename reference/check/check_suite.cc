#include "reference/check/check_suite.h"

#include <sstream>

#include "reference/require.h"

namespace streambp::reference {

void Suite::check(const std::string& name, const Function& f, const Matrices& inputs, Expected expected,
                  CheckOptions options) {
  std::string shapes;
  for (const Matrix& input : inputs) shapes += (shapes.empty() ? " [" : ", ") + shape_text(input);
  options.seed = ++seed_;
  options.expected = std::move(expected);
  results_.push_back(check_gradient(name + shapes + "]", f, inputs, options));
}

Matrix build(Index rows, Index cols, const std::function<Real(Index, Index)>& entry) {
  Matrix result(rows, cols);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < cols; ++j) result(i, j) = static_cast<double>(entry(i, j));
  }
  return result;
}

std::string number_text(double x) {
  std::ostringstream text;
  text << x;
  return text.str();
}

std::vector<CheckResult> check_all_ops(std::uint64_t seed) {
  Suite suite(seed);
  check_elementwise_ops(suite);
  check_matrix_ops(suite);
  check_layer_ops(suite);
  check_softmax_ops(suite);
  check_divergences(suite);
  check_attention(suite);
  check_mixture(suite);
  check_recurrence(suite);
  check_objectives(suite);
  check_preference(suite);
  return std::move(suite).results();
}

}  // namespace streambp::reference
