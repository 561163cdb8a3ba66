// What one run of a method, or of the reference, gives, and how far that is from the truth.
#pragma once

#include "streambp/backprop/method.h"
#include "verify/error_measure.h"

namespace streambp::verify {

struct Evaluation {
  double loss = 0.0;
  at::Tensor log_probabilities;  // [N] float64, 0 where a token has no target; undefined: not asked for
  at::Tensor values;             // [N] float64, 0 where no value was asked for; undefined: not asked for
  Tensors gradients;             // of the trainable parameters
};

/// Gradients from zero, copied.
Evaluation evaluate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
                    Model* teacher = nullptr);

/// Tokens that passes have run on this thread so far: evaluate's, and those that are added. A pass is a
/// forward pass and a backward pass, which is twice the work: those of a forward pass alone count for a
/// third.
double tokens_run();
void add_tokens_run(int64_t tokens);
void add_forward_run(int64_t tokens);

/// The gradients of the trainable parameters as they stand, copied.
Tensors gradients_of(const Model& model);

struct EvaluationErrors {
  double loss = 0.0;
  double log_probabilities = 0.0;
  double values = 0.0;
  std::vector<ParameterError> gradients;  // the worst first

  double worst_gradient() const { return gradients.empty() ? 0.0 : gradients.front().error; }
  std::string worst_parameter() const { return gradients.empty() ? "" : gradients.front().name; }
  /// Of all four; NaN if any is.
  double worst() const { return worse(worse(loss, worst_gradient()), worse(log_probabilities, values)); }
  /// All four kinds by name: "(loss)", "(log-probabilities)", "(values)", then the gradients.
  std::vector<ParameterError> all() const;
};

/// Log-probabilities or values that the truth does not have are not looked at; those that it has and `value`
/// lacks count as NaN.
EvaluationErrors measure(const Evaluation& value, const Evaluation& truth);

/// Whether loss, log-probabilities, values and every gradient are the same to the last bit.
bool bit_equal(const Evaluation& a, const Evaluation& b);

}  // namespace streambp::verify
