// Optimizers that use gradients up while the backward pass is still running (LOMO: Lv et al., 2023, arXiv
// 2306.09782): a layer's gradient lives from the layer's first chunk to its last, then its parameters take
// their step, and only one layer's gradients are ever alive.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"
#include "streambp/optimizer/gradient_consumer.h"

namespace streambp {

struct OptimizerSettings {
  std::string name = "sgd";  // of optimizer_names()
  double learning_rate = 1e-3;
  double beta1 = 0.9;          // all but sgd
  double beta2 = 0.999;        // all but sgd
  double epsilon = 1e-8;       // all but sgd
  double weight_decay = 0.01;  // all but sgd
  int64_t rank = 128;          // both galores: of the space that a weight's gradient is projected into
  double scale = 0.25;         // both galores: of the step out of that space
  int64_t refresh = 200;       // both galores: steps between two choices of the space
  int64_t history = 20;        // natural-galore: projected gradients that it keeps, the newest among them
  double damping = 1e-3;       // natural-galore: what is added to their Fisher matrix's diagonal
  at::ScalarType dtype = at::kFloat;  // of the states of half-precision parameters; others have their own
  bool master_weights = false;        // steps are of float32 copies of half-precision parameters
};

/// sgd, adamw, galore, natural-galore.
std::vector<std::string> optimizer_names();

/// Turns gradients into steps, parameter by parameter; as a consumer of a pass at once.
class Optimizer : public GradientConsumer {
 public:
  /// Makes the parameter's state, so that it is there before the first pass. Of its value master weights
  /// are made; others ask for no more than its shape.
  virtual void prepare(const Parameter& parameter) = 0;

  /// Changes the parameter's value by its gradient, which may be overwritten. One call for each parameter and
  /// pass.
  virtual void step(Parameter& parameter) = 0;

  /// Whether it looks at matrices as such: its step of a share of their numbers would be another one.
  virtual bool needs_matrices() const { return false; }

  /// Of the steps from now on.
  virtual void set_learning_rate(double learning_rate) = 0;

  /// What it keeps from step to step, by the parameters' names: its own tensors, but for the numbers of steps
  /// taken, [1] int64. Those of prepared parameters are there before their first step.
  virtual std::map<std::string, at::Tensor> states() const { return {}; }

  /// Puts values that states() gave back. Throws InputError naming a state that is missing, surplus, or of
  /// another shape or dtype; nothing is changed then.
  void restore(const std::map<std::string, at::Tensor>& values);

  bool frees() const override { return true; }
  void use(const std::vector<Parameter*>& parameters) override;

 private:
  /// After the tensors of states() have their values.
  virtual void take_steps(const std::map<std::string, at::Tensor>& values) { static_cast<void>(values); }
};

/// - sgd: w -= lr g.
/// - adamw (Loshchilov and Hutter, 2019, arXiv 1711.05101): w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) +
///   eps) + wd w) with m and v the moving averages of g and g^2, as torch.optim.AdamW.
/// - galore (Zhao et al., 2024, arXiv 2403.03507): the same on R = P^T g [rank, n] for weights [m, n] with
///   rank < min(m, n), the step being scale * P (...); P [m, rank] holds the gradient's first left singular
///   vectors (right ones, on the other side, where m > n), chosen again every `refresh` steps. Other
///   parameters take adamw's step.
/// - natural-galore (Das, 2024, arXiv 2410.16029): galore on F^-1 R in place of R, F = damping I + the sum of
///   r r^T over the last `history` of the R, each as a vector r. It keeps these, of as many numbers as an
///   average each, and a float64 matrix [history, history].
/// Throws InputError for another name, or a number out of its range.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings);

}  // namespace streambp
