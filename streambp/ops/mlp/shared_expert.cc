#include "streambp/ops/mlp/shared_expert.h"

#include <utility>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"

namespace streambp {

at::Tensor add_shared_expert(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& expert,
                             const Linear& gate, bool graph_only) {
  std::vector<at::Tensor> inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  const bool keep = needs_backward(inputs);  // asked before autograd is off
  const MemoryScope scope("MLP");
  GatedMlpSaved saved;
  at::Tensor weights, y;
  {
    const at::NoGradGuard no_grad;
    weights = linear_forward(gate, x).sigmoid_();
    if (graph_only) {
      saved = save_gated(expert, x);
      y = unread(x);
    } else {
      y = linear_forward(*expert.down_proj, gated_product(expert, x, saved, keep)).mul_(weights);
      if (residual.defined()) y.add_(residual);
    }
  }
  return differentiable(inputs, std::move(y), "shared_expert",
                        [x = x.detach(), &expert, &gate, saved, weights,
                         inputs = inputs.size()](std::vector<at::Tensor>&& dy) mutable {
                          at::Tensor d_weights;
                          at::Tensor dx =
                              gated_mlp_backward(expert, std::move(saved), dy[0], weights, &d_weights);
                          const at::Tensor d_logits = at::sigmoid_backward(d_weights, weights);
                          linear_accumulate(gate, x, d_logits);
                          linear_backward_input(gate, d_logits, dx);
                          std::vector<at::Tensor> gradients{dx};
                          if (inputs == 2) gradients.push_back(dy[0]);
                          return gradients;
                        });
}

}  // namespace streambp
