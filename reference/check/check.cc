#include "reference/check/check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>

namespace streambp::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Evaluation {
  Matrix value;
  std::vector<Matrix> gradients;  // of <cotangent, value>, one for every input
};

Matrix value_of(const Function& f, const std::vector<Matrix>& inputs) {
  Tape tape;
  std::vector<Var> leaves;
  for (const Matrix& input : inputs) leaves.push_back(tape.leaf(input));
  return f(tape, leaves).value();
}

Evaluation evaluate_with(const Function& f, const std::vector<Matrix>& inputs, const Matrix& cotangent) {
  Tape tape;
  std::vector<Var> leaves;
  for (const Matrix& input : inputs) leaves.push_back(tape.leaf(input));
  const Var result = f(tape, leaves);
  tape.backward(result, cotangent);
  Evaluation evaluation{result.value(), {}};
  for (const Var& leaf : leaves) evaluation.gradients.push_back(leaf.gradient());
  return evaluation;
}

/// max |x|, and NaN where an entry is NaN.
double largest(const Matrix& x) {
  double result = 0.0;
  for (double entry : x.reshaped()) {
    if (!(std::abs(entry) <= result)) result = std::abs(entry);
    if (std::isnan(result)) break;
  }
  return result;
}

bool same_shape(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols();
}

/// max |a - b|, and NaN where a shape differs or an entry is NaN.
double largest_difference(const Matrix& a, const Matrix& b) {
  return same_shape(a, b) ? largest(a - b) : kNaN;
}

/// d<w, f>/dx for one entry x by six-point central differences with step h. Opposite points are subtracted
/// entry by entry before they are summed, so that entries of f which do not depend on x cancel exactly.
double central_difference(const Function& f, std::vector<Matrix> inputs, std::size_t input, Index entry,
                          const Matrix& w, double h) {
  static constexpr std::array<double, 3> kCoefficients = {45.0, -9.0, 1.0};
  double& x = inputs[input].data()[entry];
  const double center = x;
  Matrix weighted = Matrix::Zero(w.rows(), w.cols());
  for (std::size_t i = 0; i < kCoefficients.size(); ++i) {
    const double step = static_cast<double>(i + 1) * h;
    x = center + step;
    const Matrix above = value_of(f, inputs);
    x = center - step;
    weighted += kCoefficients[i] * (above - value_of(f, inputs));
  }
  return weighted.cwiseProduct(w).sum() / (60.0 * h);
}

/// Up to max_entries different numbers below size, at random.
std::vector<Index> choose_entries(Index size, std::size_t max_entries, std::mt19937_64& random) {
  std::vector<Index> entries(static_cast<std::size_t>(size));
  std::iota(entries.begin(), entries.end(), Index{0});
  if (entries.size() > max_entries) {
    std::shuffle(entries.begin(), entries.end(), random);
    entries.resize(max_entries);
  }
  return entries;
}

struct GradientComparison {
  double error = 0.0;
  std::string worst;               // the entry with the largest error, in words
  Index most_important_entry = 0;  // the one with the largest difference quotient
  double importance = 0.0;         // that quotient's size
};

GradientComparison compare_gradient(const Function& f, const std::vector<Matrix>& inputs, std::size_t input,
                                    const Evaluation& tape_result, const Matrix& cotangent,
                                    const CheckOptions& options, std::mt19937_64& random) {
  const Matrix& gradient = tape_result.gradients[input];
  GradientComparison comparison;
  if (!same_shape(gradient, inputs[input])) {
    comparison.error = kNaN;
    comparison.worst = "the gradient of input " + std::to_string(input) + " has another shape than the input";
    return comparison;
  }
  Index worst_entry = 0;
  double worst_difference = -1.0;
  double worst_numeric = 0.0;
  for (Index entry : choose_entries(gradient.size(), options.max_entries, random)) {
    const double tape = gradient.data()[entry];
    const double x = inputs[input].data()[entry];
    const double length =
        options.length_scales.empty() ? std::max(1.0, std::abs(x)) : options.length_scales.at(input);
    const double h = std::pow(std::numeric_limits<double>::epsilon(), 1.0 / 7.0) * length;
    const double wide = central_difference(f, inputs, input, entry, cotangent, h);
    const double narrow = central_difference(f, inputs, input, entry, cotangent, h / 4.0);
    // A NaN in either counts as the nearer, so that it is not passed over.
    const bool narrow_counts = std::isnan(narrow) || std::abs(tape - narrow) < std::abs(tape - wide);
    const double numeric = narrow_counts ? narrow : wide;
    if (std::abs(numeric) > comparison.importance) {
      comparison.importance = std::abs(numeric);
      comparison.most_important_entry = entry;
    }
    const double difference = std::abs(tape - numeric);
    if (!(difference <= worst_difference) && !std::isnan(worst_difference)) {
      worst_difference = difference;
      worst_numeric = numeric;
      worst_entry = entry;
    }
  }
  if (worst_difference == -1.0) return comparison;  // an input without entries
  const double scale = std::max(comparison.importance, 1e-3 * largest(tape_result.value));
  comparison.error = worst_difference / (scale == 0.0 ? 1.0 : scale);
  std::ostringstream text;
  text << std::setprecision(17) << "input " << input << " entry (" << worst_entry / gradient.cols() << ", "
       << worst_entry % gradient.cols() << "): tape " << gradient.data()[worst_entry] << ", differences "
       << worst_numeric;
  comparison.worst = text.str();
  return comparison;
}

bool refuses(const Function& f, const std::vector<Matrix>& inputs) {
  try {
    value_of(f, inputs);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

CheckResult check_gradient(const std::string& name, const Function& f, const std::vector<Matrix>& inputs,
                           const CheckOptions& options) {
  CheckResult result;
  result.name = name;
  result.limit = options.limit;
  std::string failures;
  const auto fail = [&failures](const std::string& text) {
    failures += (failures.empty() ? "" : "; ") + text;
  };

  std::mt19937_64 random(options.seed);
  const Matrix value = value_of(f, inputs);
  const Matrix cotangent = random_matrix(value.rows(), value.cols(), random());
  const Evaluation first = evaluate_with(f, inputs, cotangent);

  if (options.expected) {
    const Matrix expected = options.expected(inputs);
    const double size = largest(expected);
    result.value_error = largest_difference(first.value, expected) / (size == 0.0 ? 1.0 : size);
    if (!(result.value_error <= kValueLimit)) fail("the value is wrong");
  }

  std::vector<Index> nan_entries(inputs.size(), -1);
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    const auto comparison = compare_gradient(f, inputs, input, first, cotangent, options, random);
    if (comparison.importance > 0.0) nan_entries[input] = comparison.most_important_entry;
    const bool worse = !(comparison.error <= result.gradient_error) && !std::isnan(result.gradient_error);
    if (worse || result.detail.empty()) {
      result.gradient_error = comparison.error;
      result.detail = comparison.worst;
    }
  }
  if (!(result.gradient_error <= options.limit)) fail("the gradient is wrong at " + result.detail);

  const Evaluation again = evaluate_with(f, inputs, cotangent);
  const Evaluation at_rest = evaluate_with(f, inputs, Matrix::Zero(value.rows(), value.cols()));
  bool repeats = largest_difference(first.value, again.value) == 0.0;
  bool rests = true;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    repeats = repeats && largest_difference(first.gradients[input], again.gradients[input]) == 0.0;
    rests = rests && largest(at_rest.gradients[input]) == 0.0;
  }
  if (!repeats) fail("a repetition differs");
  if (!rests) fail("a cotangent of zeros gives a gradient that is not zero");

  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (nan_entries[input] < 0) continue;
    std::vector<Matrix> poisoned = inputs;
    poisoned[input].data()[nan_entries[input]] = kNaN;
    if (!std::isnan(largest(value_of(f, poisoned))))
      fail("a NaN in input " + std::to_string(input) + " is lost");
  }
  for (std::size_t i = 0; i < options.refused.size(); ++i) {
    if (!refuses(f, options.refused[i])) fail("wrong inputs " + std::to_string(i) + " are not refused");
  }

  result.passed = failures.empty();
  if (!result.passed) result.detail = failures;
  return result;
}

Matrix random_matrix(Index rows, Index cols, std::uint64_t seed, double low, double high) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> entry(low, high);
  return Matrix::NullaryExpr(rows, cols, [&] { return entry(random); });
}

}  // namespace streambp::reference
