#include "reference/check/differences.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// d<w, f>/dt of inputs of which one is moved by t u, by six-point central differences with step h. Opposite
/// points are subtracted entry by entry before they are summed, so that entries of f which do not depend on
/// the input cancel exactly.
double central_difference(const Case& c, std::size_t input, const Matrix& u, const Matrix& w, double h) {
  static constexpr std::array<double, 3> kCoefficients = {45.0, -9.0, 1.0};
  std::vector<Matrix> inputs = c.inputs;
  Matrix weighted = Matrix::Zero(w.rows(), w.cols());
  for (std::size_t i = 0; i < kCoefficients.size(); ++i) {
    const double step = static_cast<double>(i + 1) * h;
    inputs[input] = c.inputs[input] + step * u;
    const Matrix above = value_of(c.f, inputs);
    inputs[input] = c.inputs[input] - step * u;
    weighted += kCoefficients[i] * (above - value_of(c.f, inputs));
  }
  return weighted.cwiseProduct(w).sum() / (60.0 * h);
}

}  // namespace

Matrix value_of(const Function& f, const std::vector<Matrix>& inputs) {
  Tape tape;
  std::vector<Var> leaves;
  for (const Matrix& input : inputs) leaves.push_back(tape.leaf(input));
  return f(tape, leaves).value();
}

double difference_error(const Case& c, std::size_t input, const Matrix& gradient, const Matrix& w,
                        double largest_value) {
  const Matrix& x = c.inputs[input];
  if (x.size() == 0) return 0.0;
  Matrix lengths = x.cwiseAbs().cwiseMax(1.0);
  if (!c.options.length_scales.empty()) lengths.setConstant(c.options.length_scales.at(input));
  const Matrix u = random_direction(x.rows(), x.cols(), c.options.seed + input).cwiseProduct(lengths);
  const double along = gradient.cwiseProduct(u).sum();
  const double h = std::pow(std::numeric_limits<double>::epsilon(), 1.0 / 7.0);
  const double size = std::max(gradient.cwiseProduct(lengths).norm(), 1e-3 * largest_value);
  const double scale = size == 0.0 ? 1.0 : size;
  const double wide = std::abs(along - central_difference(c, input, u, w, h)) / scale;
  if (wide <= 1e-10) return wide;
  const double narrow = std::abs(along - central_difference(c, input, u, w, h / 4.0)) / scale;
  // A NaN in either counts as the nearer, so that it is not passed over.
  return std::isnan(narrow) || narrow < wide ? narrow : wide;
}

}  // namespace streambp::STREAMBP_REFERENCE
