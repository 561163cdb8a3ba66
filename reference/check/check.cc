#include "reference/check/check.h"

#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "reference/check/differences.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Evaluation {
  Matrix value;
  std::vector<Matrix> gradients;  // of <cotangent, value>, one for every input
};

Evaluation evaluate_with(const Case& c, const Matrix& cotangent) {
  Tape tape;
  std::vector<Var> leaves;
  for (const Matrix& input : c.inputs) leaves.push_back(tape.leaf(input));
  const Var result = c.f(tape, leaves);
  tape.backward(result, cotangent);
  Evaluation evaluation{result.value(), {}};
  for (const Var& leaf : leaves) evaluation.gradients.push_back(leaf.gradient());
  return evaluation;
}

bool is_worse(double error, double than) {
  return !(error <= than) && !std::isnan(than);
}

/// max |x|, and NaN where an entry is NaN.
template <typename M>
double largest(const M& x) {
  double result = 0.0;
  for (const auto entry : x.reshaped()) {
    const auto size = static_cast<double>(std::abs(entry));
    if (is_worse(size, result)) result = size;
  }
  return result;
}

template <typename A, typename B>
bool same_shape(const A& a, const B& b) {
  return a.rows() == b.rows() && a.cols() == b.cols();
}

/// max |a - b|, and NaN where a shape differs or an entry is NaN.
double largest_difference(const Matrix& a, const Matrix& b) {
  return same_shape(a, b) ? largest(a - b) : kNaN;
}

/// max |a - b| / scale for b in extended precision, and NaN as above.
double difference_over(double scale, const Matrix& a, const LongMatrix& b) {
  return same_shape(a, b) ? largest(a.cast<long double>() - b) / scale : kNaN;
}

/// The entry where a gradient is farthest from the truth, in words.
std::string worst_entry(const Matrix& gradient, const LongMatrix& truth, std::size_t input) {
  Index row = 0, column = 0;
  (gradient.cast<long double>() - truth).cwiseAbs().maxCoeff(&row, &column);
  std::ostringstream text;
  text << std::setprecision(17) << "input " << input << " entry (" << row << ", " << column << "): tape "
       << gradient(row, column) << ", in extended precision " << std::setprecision(21) << truth(row, column);
  return text.str();
}

bool refuses(const Function& f, const std::vector<Matrix>& inputs) {
  try {
    value_of(f, inputs);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

/// One case, check by check.
class Checked {
 public:
  explicit Checked(const Case& c)
      : c_(c),
        value_(value_of(c.f, c.inputs)),
        cotangent_(cotangent_of(c, value_.rows(), value_.cols())),
        first_(evaluate_with(c, cotangent_)) {
    result_.name = c.name;
    result_.limit = c.options.limit;
  }

  CheckResult result() && {
    result_.passed = failures_.empty();
    if (!result_.passed) result_.detail = failures_;
    return std::move(result_);
  }

  void shapes() {
    for (std::size_t input = 0; input < c_.inputs.size(); ++input) {
      if (same_shape(first_.gradients[input], c_.inputs[input])) continue;
      result_.difference_error = kNaN;
      fail("the gradient of input " + std::to_string(input) + " has another shape than the input");
    }
  }

  void value() {
    if (!c_.options.expected) return;
    const Matrix expected = c_.options.expected(c_.inputs);
    const double size = largest(expected);
    result_.value_error = largest_difference(first_.value, expected) / (size == 0.0 ? 1.0 : size);
    if (!(result_.value_error <= c_.options.limit)) fail("the value is wrong");
  }

  void against(const Truth& truth) {
    if (truth.name != c_.name || truth.gradients.size() != c_.inputs.size()) {
      fail("the truth is of another case, " + truth.name);
      return;
    }
    const double size = largest(truth.value);
    const double value_error = difference_over(size == 0.0 ? 1.0 : size, first_.value, truth.value);
    if (is_worse(value_error, result_.value_error)) result_.value_error = value_error;
    if (!(value_error <= c_.options.limit)) fail("the value is not that of extended precision");
    for (std::size_t input = 0; input < c_.inputs.size(); ++input) {
      const Matrix& gradient = first_.gradients[input];
      const LongMatrix& exact = truth.gradients[input];
      const double error = difference_over(scale_of(largest(exact), size), gradient, exact);
      if (!is_worse(error, result_.gradient_error)) continue;
      result_.gradient_error = error;
      if (same_shape(gradient, exact)) result_.detail = worst_entry(gradient, exact, input);
    }
    if (!(result_.gradient_error <= c_.options.limit)) fail("the gradient is wrong at " + result_.detail);
    result_.chain_rule_error = truth.chain_rule_error;
    result_.steps = truth.steps;
    if (!(truth.chain_rule_error <= kChainRuleLimit)) fail("the chain rule is wrong at " + truth.worst_step);
  }

  void differences() {
    const std::size_t count = c_.inputs.size();
    for (std::size_t input = 0; input < count; ++input) {
      if (!same_shape(first_.gradients[input], c_.inputs[input])) return;  // see shapes
    }
    const std::size_t step = c_.options.move_together ? count : 1;
    for (std::size_t input = 0; input < count; input += step) {
      const double error =
          difference_error(c_, input, input + step, first_.gradients, cotangent_, largest(first_.value));
      if (is_worse(error, result_.difference_error)) result_.difference_error = error;
      if (!(error <= kDifferenceLimit))
        fail("the gradient is wrong along a direction of " +
             (step == 1 ? "input " + std::to_string(input) : "all inputs"));
    }
  }

  void repetition() {
    const Evaluation again = evaluate_with(c_, cotangent_);
    const Evaluation at_rest = evaluate_with(c_, Matrix::Zero(value_.rows(), value_.cols()));
    bool repeats = largest_difference(first_.value, again.value) == 0.0;
    bool rests = true;
    for (std::size_t input = 0; input < c_.inputs.size(); ++input) {
      repeats = repeats && largest_difference(first_.gradients[input], again.gradients[input]) == 0.0;
      rests = rests && largest(at_rest.gradients[input]) == 0.0;
    }
    if (!repeats) fail("a repetition differs");
    if (!rests) fail("a cotangent of zeros gives a gradient that is not zero");
  }

  /// At the entry of each input with the largest gradient.
  void poison() {
    for (std::size_t input = 0; input < c_.inputs.size(); ++input) {
      const Matrix& gradient = first_.gradients[input];
      if (!same_shape(gradient, c_.inputs[input]) || !(largest(gradient) > 0.0)) continue;
      Index row = 0, column = 0;
      gradient.cwiseAbs().maxCoeff(&row, &column);
      std::vector<Matrix> poisoned = c_.inputs;
      poisoned[input](row, column) = kNaN;
      if (!std::isnan(largest(value_of(c_.f, poisoned))))
        fail("a NaN in input " + std::to_string(input) + " is lost");
    }
  }

  void refusals() {
    for (std::size_t i = 0; i < c_.options.refused.size(); ++i) {
      if (!refuses(c_.f, c_.options.refused[i]))
        fail("wrong inputs " + std::to_string(i) + " are not refused");
    }
  }

 private:
  void fail(const std::string& text) { failures_ += (failures_.empty() ? "" : "; ") + text; }

  const Case& c_;
  const Matrix value_, cotangent_;
  const Evaluation first_;
  CheckResult result_;
  std::string failures_;
};

}  // namespace

CheckResult check_case(const Case& c, const Truth* truth) {
  Checked checked(c);
  checked.shapes();
  checked.value();
  if (truth != nullptr) checked.against(*truth);
  checked.differences();
  checked.repetition();
  checked.poison();
  checked.refusals();
  return std::move(checked).result();
}

CheckResult check_gradient(const std::string& name, const Function& f, const std::vector<Matrix>& inputs,
                           const CheckOptions& options) {
  return check_case({name, f, inputs, options}, nullptr);
}

std::vector<CheckResult> check_all_ops(std::uint64_t seed) {
  const std::vector<Truth> truths = reference_in_extended_precision::truths_of_ops(seed);
  std::vector<CheckResult> results;
  list_ops(seed, [&](const Case& c) { results.push_back(check_case(c, &truths.at(results.size()))); });
  return results;
}

std::vector<CheckResult> check_models(std::uint64_t seed, std::size_t entries) {
  const std::vector<Truth> truths = reference_in_extended_precision::truths_of_models(seed, entries);
  std::vector<CheckResult> results;
  list_models(seed, entries,
              [&](const Case& c) { results.push_back(check_case(c, &truths.at(results.size()))); });
  return results;
}

}  // namespace streambp::STREAMBP_REFERENCE
