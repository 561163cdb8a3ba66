#include "streambp/ops/mlp.h"

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"

namespace streambp {
namespace {

at::Tensor activate(const at::Tensor& x, Activation activation) {
  return activation == Activation::kSilu ? at::silu(x) : at::gelu(x, "tanh");
}

/// Turns d_activated into the gradient of x, in place.
void activate_backward(at::Tensor& d_activated, const at::Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_backward_out(d_activated, d_activated, x);
  } else {
    at::gelu_backward_out(d_activated, d_activated, x, "tanh");
  }
}

}  // namespace

at::Tensor gated_product(const GatedMlp& mlp, const at::Tensor& x, GatedMlpSaved& saved) {
  const at::NoGradGuard no_grad;
  saved.x = mlp.gate->trainable() || mlp.up->trainable() ? x.detach() : at::Tensor();
  saved.gated = linear_forward(*mlp.gate, x);
  saved.raised = linear_forward(*mlp.up, x);
  return activate(saved.gated, mlp.activation).mul_(saved.raised);
}

at::Tensor gated_mlp_backward(const GatedMlp& mlp, GatedMlpSaved&& saved, const at::Tensor& dy,
                              const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  at::Tensor gated = std::move(saved.gated), raised = std::move(saved.raised);
  const bool weighted = row_weights.defined();
  // The product is made in the activation's place, and the activation again later: another [n, F] tensor
  // would cost more than an elementwise pass.
  at::Tensor product;
  if (mlp.down->trainable() || weighted) product = activate(gated, mlp.activation).mul_(raised);
  if (mlp.down->trainable()) linear_accumulate(*mlp.down, product, weighted ? dy * row_weights : dy);
  if (!weighted) product.reset();
  at::Tensor d_product;
  linear_backward_input(*mlp.down, dy, d_product);
  if (weighted) {
    *d_row_weights = product.mul_(d_product).sum(1, /*keepdim=*/true);
    product.reset();
    d_product.mul_(row_weights);
  }
  at::Tensor activation = activate(gated, mlp.activation);
  // From here each [n, F] tensor becomes the next one in place.
  at::Tensor d_gated = raised.mul_(d_product);
  at::Tensor d_raised = d_product.mul_(activation);
  activation.reset();
  activate_backward(d_gated, gated, mlp.activation);
  gated.reset();
  at::Tensor dx;
  linear_accumulate(*mlp.gate, saved.x, d_gated);
  linear_backward_input(*mlp.gate, d_gated, dx);
  raised.reset();
  d_gated.reset();
  linear_accumulate(*mlp.up, saved.x, d_raised);
  linear_backward_input(*mlp.up, d_raised, dx);
  return dx;
}

at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp, bool keep_all) {
  GatedMlpSaved saved;
  at::Tensor output;
  std::vector<at::Tensor> kept;
  {
    const at::NoGradGuard no_grad;
    at::Tensor product;
    {
      const MemoryScope scope("MLP");
      product = gated_product(mlp, x, saved);
      if (keep_all) kept = {activate(saved.gated, mlp.activation), product};
    }
    output = residual.defined() ? linear_add_forward(residual, product, *mlp.down)
                                : linear_forward(*mlp.down, product);
  }
  std::vector<at::Tensor> inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  const MemoryScope scope("MLP");  // that of the backward pass; the output is the caller's
  output =
      differentiable(inputs, std::move(output), "gated_mlp",
                     [&mlp, saved, inputs = inputs.size()](std::vector<at::Tensor>&& dy) mutable {
                       std::vector<at::Tensor> gradients{gated_mlp_backward(mlp, std::move(saved), dy[0])};
                       if (inputs == 2) gradients.push_back(dy[0]);
                       return gradients;
                     });
  return keep_all ? hold(output, std::move(kept)) : output;
}

}  // namespace streambp
