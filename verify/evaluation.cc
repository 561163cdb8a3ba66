#include "verify/evaluation.h"

#include <algorithm>

#include "verify/reference_bridge.h"

namespace streambp {

Evaluation evaluate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings) {
  model.zero_gradients();
  const Outcome outcome = backpropagate(model, batch, objective, settings);
  Evaluation evaluation{outcome.loss, outcome.log_probabilities.to(at::kCPU), {}};
  for (const auto& parameter : model.parameters()) {
    if (parameter->trainable()) {
      evaluation.gradients.emplace(parameter->name,
                                   parameter->gradient.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    }
  }
  return evaluation;
}

Evaluation evaluate_reference(const Model& model, const Batch& batch, const reference::Objective& objective) {
  const reference::Result result = reference::evaluate(
      reference_config(model.config()), reference_weights(model), reference_sequences(batch), objective);
  return {result.loss, at::tensor(at::ArrayRef<double>(result.log_probabilities), at::kDouble),
          tensors_of(result.gradients, model.config())};
}

EvaluationErrors measure(const Evaluation& value, const Evaluation& truth) {
  return {relative_error(value.loss, truth.loss),
          relative_error(value.log_probabilities, truth.log_probabilities),
          gradient_errors(value.gradients, truth.gradients)};
}

bool bit_equal(const Evaluation& a, const Evaluation& b) {
  // Losses are compared as numbers: NaN is equal to nothing.
  if (!(a.loss == b.loss) || !bit_equal(a.log_probabilities, b.log_probabilities)) return false;
  return std::equal(
      a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
      [](const auto& x, const auto& y) { return x.first == y.first && bit_equal(x.second, y.second); });
}

}  // namespace streambp
