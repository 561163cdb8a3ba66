#include "streambp/ops/differentiable.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "streambp/memory/remembered_scope.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {

bool needs_backward(const std::vector<at::Tensor>& inputs) {
  return at::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.requires_grad();
         });
}

std::vector<at::Tensor> differentiable(const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs,
                                       const char* name, Backward backward) {
  if (!needs_backward(inputs)) return outputs;
  // New tensors over the same storage: the closure may hold the old ones without holding the graph, itself
  // included.
  for (at::Tensor& output : outputs) output = output.detach();
  torch_private::set_backward(
      inputs, outputs, name,
      [backward = std::move(backward), remembered = RememberedScope()](std::vector<at::Tensor>&& gradients) {
        const at::NoGradGuard no_grad;
        const RememberedScope::Reopened scope(remembered);
        return backward(std::move(gradients));
      });
  return outputs;
}

at::Tensor differentiable(const std::vector<at::Tensor>& inputs, at::Tensor output, const char* name,
                          Backward backward) {
  return differentiable(inputs, std::vector<at::Tensor>{std::move(output)}, name, std::move(backward))
      .front();
}

at::Tensor unread(const at::Tensor& like) {
  return at::full({}, std::numeric_limits<double>::quiet_NaN(), like.options()).expand(like.sizes());
}

}  // namespace streambp
