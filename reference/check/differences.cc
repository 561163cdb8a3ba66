#include "reference/check/differences.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// d<w, f>/dt of inputs moved by t u, u[0] that of input `first`, by six-point central differences with step
/// h. Opposite points are subtracted entry by entry before they are summed, so that entries of f which do not
/// depend on the inputs cancel exactly.
double central_difference(const Case& c, std::size_t first, const std::vector<Matrix>& u, const Matrix& w,
                          double h) {
  static constexpr std::array<double, 3> kCoefficients = {45.0, -9.0, 1.0};
  std::vector<Matrix> inputs = c.inputs;
  const auto value_at = [&](double t) {
    for (std::size_t i = 0; i < u.size(); ++i) inputs[first + i] = c.inputs[first + i] + t * u[i];
    return value_of(c.f, inputs);
  };
  Matrix weighted = Matrix::Zero(w.rows(), w.cols());
  for (std::size_t i = 0; i < kCoefficients.size(); ++i) {
    const double step = static_cast<double>(i + 1) * h;
    const Matrix above = value_at(step);
    weighted += kCoefficients[i] * (above - value_at(-step));
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

double difference_error(const Case& c, std::size_t first, std::size_t last,
                        const std::vector<Matrix>& gradients, const Matrix& w, double largest_value) {
  std::vector<Matrix> u;
  double along = 0.0, squares = 0.0;
  for (std::size_t input = first; input < last; ++input) {
    const Matrix& x = c.inputs[input];
    Matrix lengths = x.cwiseAbs().cwiseMax(1.0);
    if (!c.options.length_scales.empty()) lengths.setConstant(c.options.length_scales.at(input));
    u.push_back(random_direction(x.rows(), x.cols(), c.options.seed + input).cwiseProduct(lengths) /
                std::sqrt(static_cast<double>(last - first)));
    along += gradients[input].cwiseProduct(u.back()).sum();
    squares += gradients[input].cwiseProduct(lengths).squaredNorm();
  }
  if (std::all_of(u.begin(), u.end(), [](const Matrix& of) { return of.size() == 0; })) return 0.0;
  const double h = std::pow(std::numeric_limits<double>::epsilon(), 1.0 / 7.0);
  const double size = std::max(std::sqrt(squares), 1e-3 * largest_value);
  const double scale = size == 0.0 ? 1.0 : size;
  const double wide = std::abs(along - central_difference(c, first, u, w, h)) / scale;
  if (wide <= 1e-10) return wide;
  const double narrow = std::abs(along - central_difference(c, first, u, w, h / 4.0)) / scale;
  // A NaN in either counts as the nearer, so that it is not passed over.
  return std::isnan(narrow) || narrow < wide ? narrow : wide;
}

}  // namespace streambp::STREAMBP_REFERENCE
