#include "verify/evaluation.h"

#include <algorithm>
#include <limits>

namespace streambp::verify {
namespace {

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kCPU) : tensor;
}

/// Of one of the columns that an objective may not ask for.
double column_error(const at::Tensor& value, const at::Tensor& truth) {
  if (!truth.defined()) return 0.0;
  return value.defined() ? relative_error(value, truth) : std::numeric_limits<double>::quiet_NaN();
}

/// Of this thread.
double& run_so_far() {
  thread_local double tokens = 0.0;
  return tokens;
}

bool same_column(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || bit_equal(a, b));
}

}  // namespace

double tokens_run() {
  return run_so_far();
}

void add_tokens_run(int64_t tokens) {
  run_so_far() += static_cast<double>(tokens);
}

void add_forward_run(int64_t tokens) {
  run_so_far() += static_cast<double>(tokens) / 3.0;
}

Tensors gradients_of(const Model& model) {
  Tensors gradients;
  for (const auto& [name, gradient] : model.gradients())
    gradients.emplace(name, gradient.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  return gradients;
}

Evaluation evaluate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                    Model* teacher) {
  model.zero_gradients();
  add_tokens_run(batch.size());
  const Outcome outcome = backpropagate(model, batch, objective, settings, teacher);
  return {outcome.loss, on_cpu(outcome.log_probabilities), on_cpu(outcome.values), gradients_of(model)};
}

std::vector<ParameterError> EvaluationErrors::all() const {
  std::vector<ParameterError> errors{
      {"(loss)", loss, {}}, {"(log-probabilities)", log_probabilities, {}}, {"(values)", values, {}}};
  errors.insert(errors.end(), gradients.begin(), gradients.end());
  return errors;
}

EvaluationErrors measure(const Evaluation& value, const Evaluation& truth) {
  return {relative_error(value.loss, truth.loss),
          column_error(value.log_probabilities, truth.log_probabilities),
          column_error(value.values, truth.values), gradient_errors(value.gradients, truth.gradients)};
}

bool bit_equal(const Evaluation& a, const Evaluation& b) {
  // Losses are compared as numbers: NaN is equal to nothing.
  if (!(a.loss == b.loss) || !same_column(a.log_probabilities, b.log_probabilities) ||
      !same_column(a.values, b.values)) {
    return false;
  }
  return std::equal(
      a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
      [](const auto& x, const auto& y) { return x.first == y.first && bit_equal(x.second, y.second); });
}

}  // namespace streambp::verify
