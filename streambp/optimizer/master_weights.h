// Float32 values of half-precision parameters, which an optimizer's steps are taken of: a step smaller than
// half a unit in a weight's last place is lost in the weight itself, and adds up here.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/optimizer/optimizer.h"

namespace streambp {

/// Steps `inner` on a float32 copy of each half-precision parameter, made from its value when it is prepared
/// or first stepped on, and rounds the parameter from it. What changes a parameter otherwise afterwards is
/// overwritten. Wider parameters are inner's own.
class MasterWeights final : public Optimizer {
 public:
  explicit MasterWeights(std::unique_ptr<Optimizer> inner) : inner_(std::move(inner)) {}

  /// Whether steps on it are taken of a copy.
  static bool copies(const Parameter& parameter) { return parameter.value.element_size() < 4; }

  void prepare(const Parameter& parameter) override;
  void step(Parameter& parameter) override;
  bool needs_matrices() const override { return inner_->needs_matrices(); }
  void set_learning_rate(double learning_rate) override { inner_->set_learning_rate(learning_rate); }
  /// Those of inner, and each copy as NAME.master.
  std::map<std::string, at::Tensor> states() const override;

 private:
  void take_steps(const std::map<std::string, at::Tensor>& values) override;
  Parameter& master(const Parameter& parameter);

  std::unique_ptr<Optimizer> inner_;
  std::map<std::string, Parameter> masters_;
};

}  // namespace streambp
