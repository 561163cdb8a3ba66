#include "reference/check/truth.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <utility>

#include "reference/check/case.h"
#include "reference/check/truth_of.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

using reference::LongMatrix;
using reference::scale_of;

/// Its square is lost in any sum with a number that occurs, and it is far from the smallest number.
constexpr long double kStep = 1e-100L;

LongMatrix real_parts(const Matrix& x) {
  LongMatrix result(x.rows(), x.cols());
  std::transform(x.data(), x.data() + x.size(), result.data(), [](const Scalar& z) { return z.real(); });
  return result;
}

/// d<w, f>/dt of the case at inputs that are moved by t times their directions, by a complex step.
long double derivative(const Case& c, const std::map<std::size_t, DoubleMatrix>& directions,
                       const DoubleMatrix& w) {
  Tape tape;
  std::vector<Var> leaves;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    Matrix x = on_tape(c.inputs[i]);
    const auto direction = directions.find(i);
    if (direction != directions.end()) x += Scalar(0, kStep) * on_tape(direction->second);
    leaves.push_back(tape.leaf(std::move(x)));
  }
  const Matrix value = c.f(tape, leaves).value();
  long double sum = 0;
  for (Index i = 0; i < value.size(); ++i) sum += w.data()[i] * value.data()[i].imag();
  return sum / kStep;
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

/// Notes how far the tape's `a` is from the derivative `d`.
void note_step(Truth& truth, const std::string& where, long double a, long double d, long double scale) {
  const auto error = static_cast<double>(std::abs(a - d) / scale);
  ++truth.steps;
  if (error <= truth.chain_rule_error || std::isnan(truth.chain_rule_error)) return;
  truth.chain_rule_error = error;
  std::ostringstream text;
  text << std::setprecision(21) << where << ": tape " << a << ", complex step " << d;
  truth.worst_step = text.str();
}

long double largest_value(const Truth& truth) {
  return truth.value.size() == 0 ? 0 : truth.value.cwiseAbs().maxCoeff();
}

/// Whether the gradient of an input is as large as the input; if not, the chain rule is wrong.
bool check_shape(Truth& truth, const Case& c, std::size_t input) {
  const LongMatrix& gradient = truth.gradients[input];
  const DoubleMatrix& x = c.inputs[input];
  if (gradient.rows() == x.rows() && gradient.cols() == x.cols()) return true;
  truth.chain_rule_error = std::numeric_limits<double>::quiet_NaN();
  truth.worst_step = "the gradient of input " + std::to_string(input) + " has another shape than the input";
  return false;
}

void check_steps(Truth& truth, const Case& c, std::size_t input, const DoubleMatrix& w,
                 std::mt19937_64& random) {
  const LongMatrix& gradient = truth.gradients[input];
  const DoubleMatrix& x = c.inputs[input];
  const std::string name = "input " + std::to_string(input);
  if (!check_shape(truth, c, input) || gradient.size() == 0) return;
  const long double value = largest_value(truth);
  const long double scale = scale_of(gradient.cwiseAbs().maxCoeff(), value);
  for (Index entry : choose_entries(gradient.size(), c.options.max_entries, random)) {
    DoubleMatrix alone = DoubleMatrix::Zero(x.rows(), x.cols());
    alone.data()[entry] = 1.0;
    note_step(
        truth,
        name + " entry (" + std::to_string(entry / x.cols()) + ", " + std::to_string(entry % x.cols()) + ")",
        gradient.data()[entry], derivative(c, {{input, alone}}, w), scale);
  }
  if (static_cast<std::size_t>(gradient.size()) <= c.options.max_entries) return;
  const DoubleMatrix direction = random_direction(x.rows(), x.cols(), random());
  note_step(truth, name + " as a whole", gradient.cwiseProduct(direction.cast<long double>()).sum(),
            derivative(c, {{input, direction}}, w), scale_of(gradient.norm(), value));
}

/// One step of all inputs, each by as much as the others.
void check_joint_step(Truth& truth, const Case& c, const DoubleMatrix& w, std::mt19937_64& random) {
  std::map<std::size_t, DoubleMatrix> directions;
  long double along = 0, squares = 0;
  for (std::size_t input = 0; input < c.inputs.size(); ++input) {
    const LongMatrix& gradient = truth.gradients[input];
    if (!check_shape(truth, c, input)) return;
    if (gradient.size() == 0) continue;
    const DoubleMatrix& direction =
        directions.emplace(input, random_direction(gradient.rows(), gradient.cols(), random())).first->second;
    along += gradient.cwiseProduct(direction.cast<long double>()).sum();
    squares += gradient.squaredNorm();
  }
  note_step(truth, "all inputs together", along, derivative(c, directions, w),
            scale_of(std::sqrt(squares), largest_value(truth)));
}

}  // namespace

Truth truth_of(const Case& c) {
  Truth truth;
  truth.name = c.name;
  Tape tape;
  std::vector<Var> leaves;
  for (const DoubleMatrix& input : c.inputs) leaves.push_back(tape.leaf(on_tape(input)));
  const Var result = c.f(tape, leaves);
  truth.value = real_parts(result.value());
  const DoubleMatrix w = cotangent_of(c, result.rows(), result.cols());
  tape.backward(result, on_tape(w));
  for (const Var& leaf : leaves) truth.gradients.push_back(real_parts(leaf.gradient()));
  std::mt19937_64 random(c.options.seed);
  if (c.options.max_entries == 0) {
    check_joint_step(truth, c, w, random);
  } else {
    for (std::size_t input = 0; input < c.inputs.size(); ++input) check_steps(truth, c, input, w, random);
  }
  return truth;
}

std::vector<Truth> truths_of_ops(std::uint64_t seed) {
  std::vector<Truth> truths;
  list_ops(seed, [&truths](const Case& c) { truths.push_back(truth_of(c)); });
  return truths;
}

std::vector<Truth> truths_of_models(std::uint64_t seed, std::size_t entries) {
  std::vector<Truth> truths;
  list_models(seed, entries, [&truths](const Case& c) { truths.push_back(truth_of(c)); });
  return truths;
}

}  // namespace streambp::STREAMBP_REFERENCE
