#include "streambp/ops/mlp/gated_output.h"

#include "streambp/ops/differentiable.h"

namespace streambp {

at::Tensor gated_output(const at::Tensor& x, const at::Tensor& gates) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = x * at::sigmoid(gates);
  }
  return differentiable({x, gates}, std::move(output), "gated_output",
                        [x = x.detach(), gates = gates.detach()](std::vector<at::Tensor>&& dy) {
                          at::Tensor open = at::sigmoid(gates);
                          at::Tensor dx = dy[0] * open;
                          open.neg_().add_(1.0);  // sigmoid' = sigmoid (1 - sigmoid)
                          if (gates.size(2) == x.size(2)) {
                            open.mul_(dx).mul_(x);
                          } else {
                            open.mul_((dx * x).sum(2, /*keepdim=*/true));
                          }
                          return std::vector<at::Tensor>{std::move(dx), std::move(open)};
                        });
}

}  // namespace streambp
