// Sums of half-precision vectors over chunks; inside the library only.
#pragma once

#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/memory/meter.h"
#include "streambp/model/model.h"

namespace streambp {

/// bfloat16 gradients of norms and biases, which are next to nothing in memory, in float32 while a pass adds
/// to them chunk by chunk: they are rounded once, at its end. A matrix's are rounded with every chunk;
/// float32 gradients (Model::Placement) are the remedy there.
class WideVectors {
 public:
  explicit WideVectors(const Model& model) {
    const MemoryScope scope("gradients");
    for (const auto& parameter : model.parameters()) {
      at::Tensor& gradient = parameter->gradient;
      if (!gradient.defined() || gradient.dim() != 1 || gradient.scalar_type() != at::kBFloat16) continue;
      narrow_.emplace_back(parameter.get(), gradient);
      gradient = gradient.to(at::kFloat);
    }
  }
  ~WideVectors() {
    for (auto& [parameter, gradient] : narrow_)
      parameter->gradient = gradient.copy_(std::exchange(parameter->gradient, {}));
  }
  WideVectors(const WideVectors&) = delete;
  WideVectors& operator=(const WideVectors&) = delete;

 private:
  std::vector<std::pair<Parameter*, at::Tensor>> narrow_;
};

}  // namespace streambp
