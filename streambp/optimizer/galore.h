// GaLore, and what may become of a gradient in its space before the averages take it; inside the library
// only.
#pragma once

#include <map>
#include <string>

#include <ATen/ATen.h>

#include "streambp/optimizer/adamw.h"

namespace streambp {

class GaLore : public AdamW {
 public:
  explicit GaLore(const OptimizerSettings& settings) : AdamW(settings) {}

  bool needs_matrices() const override { return true; }
  std::map<std::string, at::Tensor> states() const override;
  void prepare(const Parameter& parameter) override;
  void step(Parameter& parameter) override;

 protected:
  struct State {
    at::Tensor space;  // [min(m, n), rank], orthonormal columns
    Moments moments;   // of [rank, n], or of [m, rank] where m > n
  };

  /// Of a projected parameter whose state was made just now.
  virtual void prepare_projected(const std::string& name, const State& state) {
    static_cast<void>(name), static_cast<void>(state);
  }
  /// What the averages, `state.moments.steps` steps old, take for the gradient in the parameter's space. No
  /// state: they write over it.
  virtual at::Tensor transformed(const std::string& name, const State& state, at::Tensor projected) {
    static_cast<void>(name), static_cast<void>(state);
    return projected;
  }

  void take_steps(const std::map<std::string, at::Tensor>& values) override;

 private:
  bool is_projected(const Parameter& parameter) const;
  State& state(const Parameter& parameter);
  void choose_space(State& state, const at::Tensor& gradient) const;

  std::map<std::string, State> states_;
};

}  // namespace streambp
