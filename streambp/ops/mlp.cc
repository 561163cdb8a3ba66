#include "streambp/ops/mlp.h"

#include "streambp/ops/differentiable.h"

namespace streambp {

at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const Linear& gate, const Linear& up,
                     const Linear& down) {
  at::Tensor gated = linear_forward(gate, x);
  at::Tensor raised = linear_forward(up, x);
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor product = at::silu(gated).mul_(raised);
    output = linear_add_forward(residual, product, down);
  }
  at::Tensor kept = gate.trainable() || up.trainable() ? x.detach() : at::Tensor();
  return differentiable({residual, x}, std::move(output), "gated_mlp",
                        [&gate, &up, &down, kept, gated, raised](std::vector<at::Tensor>&& dy) mutable {
                          // The product is made in the activation's place, and the activation again later:
                          // another [n, F] tensor would cost
                          // more than an elementwise pass.
                          if (down.trainable()) linear_accumulate(down, at::silu(gated).mul_(raised), dy[0]);
                          at::Tensor d_product;
                          linear_backward_input(down, dy[0], d_product);
                          at::Tensor activation = at::silu(gated);
                          // From here each [n, F] tensor becomes the next one in place.
                          at::Tensor d_gated = raised.mul_(d_product);
                          at::Tensor d_raised = d_product.mul_(activation);
                          activation.reset();
                          d_gated = at::silu_backward_out(d_gated, d_gated, gated);
                          gated.reset();
                          at::Tensor dx;
                          linear_accumulate(gate, kept, d_gated);
                          linear_backward_input(gate, d_gated, dx);
                          raised.reset();
                          d_gated.reset();
                          linear_accumulate(up, kept, d_raised);
                          linear_backward_input(up, d_raised, dx);
                          return std::vector<at::Tensor>{dy[0], dx};
                        });
}

}  // namespace streambp
