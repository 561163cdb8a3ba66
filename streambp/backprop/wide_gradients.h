// Sums over chunks that are wider than the gradients they end in; inside the library only.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/memory/meter.h"
#include "streambp/model/model.h"

namespace streambp {

/// A parameter's gradient in `dtype` while this object lives: it is rounded once, at its end.
class WideGradient {
 public:
  /// The parameter has a gradient, and must outlive it.
  WideGradient(Parameter& parameter, at::ScalarType dtype)
      : parameter_(&parameter), narrow_(parameter.gradient) {
    parameter.gradient = narrow_.to(dtype);
  }
  ~WideGradient() {
    if (parameter_ != nullptr) parameter_->gradient = narrow_.copy_(std::exchange(parameter_->gradient, {}));
  }
  WideGradient(WideGradient&& other) noexcept
      : parameter_(std::exchange(other.parameter_, nullptr)), narrow_(std::move(other.narrow_)) {}
  WideGradient& operator=(WideGradient&&) = delete;

 private:
  Parameter* parameter_;
  at::Tensor narrow_;
};

/// Whether a sum in this dtype is rounded where float32 would not be.
inline bool is_half_precision(const at::Tensor& gradient) {
  return gradient.scalar_type() == at::kBFloat16 || gradient.scalar_type() == at::kHalf;
}

/// Half-precision gradients of norms and biases, which are next to nothing in memory, in float32 while a pass
/// adds to them chunk by chunk.
class WideVectors {
 public:
  explicit WideVectors(const Model& model) {
    const MemoryScope scope("gradients");
    for (const auto& parameter : model.parameters()) {
      const at::Tensor& gradient = parameter->gradient;
      if (!gradient.defined() || gradient.dim() != 1 || !is_half_precision(gradient)) continue;
      wide_.emplace_back(*parameter, at::kFloat);
    }
  }

 private:
  std::vector<WideGradient> wide_;
};

/// The half-precision gradients of some parameters, one layer's, in float32 while its chunks add to them: 4
/// bytes a number, for as long as the layer's backward pass takes.
class WideGradients {
 public:
  WideGradients(Model& model, const std::vector<Parameter*>& parameters);
  ~WideGradients() { round(); }
  WideGradients(const WideGradients&) = delete;
  WideGradients& operator=(const WideGradients&) = delete;

  /// Rounds them once, one after another, for those who use them while this object is there.
  void round();

 private:
  struct Sum {
    Parameter* parameter;
    at::Tensor narrow;
  };
  Model& model_;
  std::vector<Sum> sums_;
};

/// While it lives the half-precision gradients of the LM head, to which each chunk of scored tokens adds, are
/// rounded once: that of its weight [V, D] has a remainder next to it, 2 bytes a number, those of a bias or
/// an adapter are float32.
class WideHead {
 public:
  /// `model` must outlive it.
  explicit WideHead(Model& model);
  ~WideHead() { round(); }
  WideHead(const WideHead&) = delete;
  WideHead& operator=(const WideHead&) = delete;

  void round();

 private:
  Parameter* weight_ = nullptr;
  WideGradients others_;
};

}  // namespace streambp
