#include "streambp/ops/gated_output.h"

#include "streambp/ops/differentiable.h"

namespace streambp {

at::Tensor gated_output(const at::Tensor& x, const at::Tensor& gates) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = at::sigmoid(gates).mul_(x);
  }
  return differentiable({x, gates}, std::move(output), "gated_output",
                        [x = x.detach(), gates = gates.detach()](std::vector<at::Tensor>&& dy) {
                          at::Tensor open = at::sigmoid(gates);
                          at::Tensor dx = dy[0] * open;
                          open.neg_().add_(1.0).mul_(dx).mul_(x);  // sigmoid' = sigmoid (1 - sigmoid)
                          return std::vector<at::Tensor>{std::move(dx), std::move(open)};
                        });
}

}  // namespace streambp
