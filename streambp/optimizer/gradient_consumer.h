// Who takes gradients while the backward pass is still running.
#pragma once

#include <vector>

#include "streambp/ops/parameter.h"

namespace streambp {

/// Is handed gradients as soon as they are final: a layer's after its last chunk, once a pass, never a
/// chunk's.
class GradientConsumer {
 public:
  virtual ~GradientConsumer() = default;

  /// Whether gradients end with their use. A pass then begins with none, makes a layer's when its turn comes
  /// and leaves none, so that only one layer's are ever alive. Otherwise they are added to those of the model
  /// and stay there.
  virtual bool frees() const = 0;

  /// The gradients of `parameters` are final. Groups come in the order of gradient_groups
  /// (streambp/backprop/gradient_groups.h), in every pass the same, whatever is scored. One that frees may
  /// reset gradients as it goes: what it leaves is freed.
  virtual void use(const std::vector<Parameter*>& parameters) = 0;

  /// All groups of a pass have been handed over: returns when nobody works on its gradients any more.
  virtual void finish() {}
};

}  // namespace streambp
