// Sums over chunks in a wider dtype than the gradients'; inside the library only.
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

/// bfloat16 gradients of norms and biases, which are next to nothing in memory, in float32 while a pass adds
/// to them chunk by chunk. A matrix's are rounded with every chunk; float32 gradients (Model::Placement) are
/// the remedy there.
class WideVectors {
 public:
  explicit WideVectors(const Model& model) {
    const MemoryScope scope("gradients");
    for (const auto& parameter : model.parameters()) {
      const at::Tensor& gradient = parameter->gradient;
      if (!gradient.defined() || gradient.dim() != 1 || gradient.scalar_type() != at::kBFloat16) continue;
      wide_.emplace_back(*parameter, at::kFloat);
    }
  }

 private:
  std::vector<WideGradient> wide_;
};

}  // namespace streambp
