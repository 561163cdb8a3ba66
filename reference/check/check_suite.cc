#include "reference/check/check_suite.h"

#include <algorithm>
#include <random>
#include <sstream>

#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {

void Suite::check(const std::string& name, const Function& f, const Matrices& inputs, Expected expected,
                  CheckOptions options) {
  std::string shapes;
  for (const DoubleMatrix& input : inputs) {
    shapes += (shapes.empty() ? " [" : ", ") + shape_text(input.rows(), input.cols());
  }
  options.seed = ++seed_;
  options.expected = std::move(expected);
  visit_({name + shapes + "]", f, inputs, options});
}

DoubleMatrix build(Index rows, Index cols, const std::function<Real(Index, Index)>& entry) {
  DoubleMatrix result(rows, cols);
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

Matrix on_tape(const DoubleMatrix& x) {
  return x.cast<Scalar>();
}

DoubleMatrix cotangent_of(const Case& c, Index rows, Index cols) {
  return random_matrix(rows, cols, std::mt19937_64(c.options.seed)());
}

DoubleMatrix random_matrix(Index rows, Index cols, std::uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> entry(low, high);
  return DoubleMatrix::NullaryExpr(rows, cols, [&] { return entry(random); });
}

DoubleMatrix random_direction(Index rows, Index cols, std::uint64_t seed) {
  const DoubleMatrix direction = random_matrix(rows, cols, seed, 0.5, 1.5);
  const DoubleMatrix sign = random_matrix(rows, cols, seed + 1, -1.0, 1.0);
  return direction.cwiseProduct(sign.cwiseSign()).normalized();
}

void list_ops(std::uint64_t seed, const Visit& visit) {
  Suite suite(seed, visit);
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
  check_trained_rope(suite);
}

}  // namespace streambp::STREAMBP_REFERENCE
