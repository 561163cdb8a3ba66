// AdamW, and what the optimizers share that take its step in other coordinates; inside the library only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/optimizer/optimizer.h"

namespace streambp {

/// Moving averages of a gradient and of its square.
struct Moments {
  at::Tensor first, second;
  int64_t steps = 0;

  static Moments zeros(const std::vector<int64_t>& shape, const at::TensorOptions& options);

  /// Takes `gradient` in and returns the direction of the step, written over it.
  at::Tensor direction(at::Tensor gradient, const OptimizerSettings& settings);

  void add_to(std::map<std::string, at::Tensor>& states, const std::string& name) const;
};

/// Options of states: wide enough for sums of small steps. A float32 parameter may be a half one's master.
at::TensorOptions state_options(const Parameter& parameter, const OptimizerSettings& settings);

class AdamW : public Optimizer {
 public:
  explicit AdamW(const OptimizerSettings& settings) : settings_(settings) {}

  void set_learning_rate(double learning_rate) override { settings_.learning_rate = learning_rate; }
  std::map<std::string, at::Tensor> states() const override;
  void prepare(const Parameter& parameter) override { moments(parameter); }
  void step(Parameter& parameter) override;

 protected:
  void take_steps(const std::map<std::string, at::Tensor>& values) override;

  OptimizerSettings settings_;

 private:
  Moments& moments(const Parameter& parameter);

  std::map<std::string, Moments> moments_;
};

}  // namespace streambp
