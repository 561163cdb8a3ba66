#include "verify/diagnose/parts/least_squares.h"

#include <algorithm>
#include <cmath>

namespace streambp::verify {
namespace {

/// Of noise whose entries are not independent: so many for each parameter are.
constexpr double kIndependent = 16.0;

}  // namespace

Solution solve(const std::vector<at::Tensor>& parts, const at::Tensor& own, size_t parameters) {
  std::vector<at::Tensor> scaled;
  std::vector<double> norms;
  for (const at::Tensor& part : parts) {
    norms.push_back(part.norm().item<double>());
    scaled.push_back(part / norms.back());
  }
  const at::Tensor columns = at::stack(scaled, 1);
  const auto [values, vectors] = at::linalg_eigh(at::matmul(columns.t(), columns));
  const double least = 1e-13 * values.max().item<double>() * static_cast<double>(parts.size());
  const at::Tensor inverse_values = at::where(values > least, values.reciprocal(), at::zeros_like(values));
  const at::Tensor inverse = at::matmul(vectors * inverse_values, vectors.t());
  at::Tensor weights = at::zeros({static_cast<int64_t>(parts.size())}, at::kDouble);
  for (int step = 0; step < 3; ++step)
    weights = weights + at::mv(inverse, at::mv(columns.t(), own - at::mv(columns, weights)));
  const double left = (own - at::mv(columns, weights)).norm().item<double>();
  const auto count = static_cast<double>(parameters);
  Solution solution;
  solution.residual = left / std::sqrt(count);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const double variance = inverse[index][index].item<double>() / (kIndependent * count);
    solution.weights.push_back(weights[index].item<double>() / norms[i]);
    solution.deviations.push_back(left * std::sqrt(std::max(variance, 0.0)) / norms[i]);
  }
  return solution;
}

bool is_one_of_each(const Solution& solution, double rounding) {
  for (size_t i = 0; i < solution.weights.size(); ++i) {
    const double known = std::max(rounding, 8.0 * solution.deviations[i]);
    if (std::abs(solution.weights[i] - 1.0) > known) return false;
  }
  return true;
}

}  // namespace streambp::verify
