// What one run of a method, or of the reference, gives, and how far that is from the truth.
#pragma once

#include "reference/model.h"
#include "streambp/backprop/method.h"
#include "verify/error_measure.h"

namespace streambp {

struct Evaluation {
  double loss = 0.0;
  at::Tensor log_probabilities;  // [N] float64, 0 where a token has no target
  Tensors gradients;             // of the trainable parameters
};

/// Gradients from zero, copied.
Evaluation evaluate(Model& model, const Batch& batch, const Objective& objective, const Settings& settings);

/// The reference's answer for the same model and batch, in double whatever the model's dtype.
Evaluation evaluate_reference(const Model& model, const Batch& batch, const reference::Objective& objective);

struct EvaluationErrors {
  double loss = 0.0;
  double log_probabilities = 0.0;
  std::vector<ParameterError> gradients;  // the worst first

  double worst_gradient() const { return gradients.empty() ? 0.0 : gradients.front().error; }
  std::string worst_parameter() const { return gradients.empty() ? "" : gradients.front().name; }
  /// Of all three; NaN if any is.
  double worst() const { return worse(worse(loss, log_probabilities), worst_gradient()); }
};

EvaluationErrors measure(const Evaluation& value, const Evaluation& truth);

/// Whether loss, log-probabilities and every gradient are the same to the last bit.
bool bit_equal(const Evaluation& a, const Evaluation& b);

}  // namespace streambp
