#include "streambp/ops/mlp.h"

#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

at::Tensor activate(const at::Tensor& x, Activation activation) {
  return activation == Activation::kSilu ? at::silu(x) : at::gelu(x, "tanh");
}

void activate_in_place(at::Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_(x);
  } else {
    at::gelu_(x, "tanh");
  }
}

/// Turns d_activated into the gradient of x, in place.
void activate_backward(at::Tensor& d_activated, const at::Tensor& x, Activation activation) {
  if (activation == Activation::kSilu) {
    at::silu_backward_out(d_activated, d_activated, x);
  } else {
    at::gelu_backward_out(d_activated, d_activated, x, "tanh");
  }
}

template <typename S>
cpu::GateBackward<S> kernel_op(Activation activation, const at::Tensor& gated, const at::Tensor& raised,
                               const at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights,
                               const at::Tensor& d_row_weights) {
  return {activation,
          gated.size(1),
          kernel_data<S>(gated),
          kernel_data<S>(raised),
          kernel_data<S>(d_product),
          wants_product,
          kernel_data<const S>(row_weights),
          kernel_data<S>(d_row_weights)};
}

}  // namespace

at::Tensor gate_plain(Activation activation, const at::Tensor& gated, const at::Tensor& raised) {
  return activate(gated, activation).mul_(raised);
}

at::Tensor gate(Activation activation, const at::Tensor& gated, const at::Tensor& raised, bool overwrite) {
  if (!has_fused_kernels({gated, raised})) return gate_plain(activation, gated, raised);
  at::Tensor product = overwrite ? gated : at::empty_like(gated);
  if (gated.is_meta()) return product;
  with_kernel_dtype(gated.scalar_type(), [&](auto number) {
    using S = decltype(number);
    if (is_for_cuda(gated)) {
      const auto launch = cuda::kernels()->of<S>().gate.product;
      return expect_launched(launch(cuda_queue(gated), activation, kernel_data<const S>(gated),
                                    kernel_data<const S>(raised), kernel_data<S>(product), gated.numel()),
                             "gate");
    }
    const auto run = cpu::kernels().of<S>().elementwise.gate.product;
    at::parallel_for(0, gated.numel(), rows_per_thread(1), [&](int64_t begin, int64_t end) {
      run(activation, kernel_data<const S>(gated), kernel_data<const S>(raised), kernel_data<S>(product),
          begin, end);
    });
  });
  return product;
}

void gate_backward_plain(Activation activation, at::Tensor& gated, at::Tensor& raised, at::Tensor& d_product,
                         bool wants_product, const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  at::Tensor product;
  if (wants_product || row_weights.defined()) product = gate_plain(activation, gated, raised);
  if (row_weights.defined()) {
    *d_row_weights = (product * d_product).sum(1, /*keepdim=*/true);
    d_product.mul_(row_weights);
  }
  // The activation is computed again, in place, rather than held beside the product.
  raised.mul_(d_product);
  activate_backward(raised, gated, activation);
  activate_in_place(gated, activation);
  gated = std::exchange(raised, d_product.mul_(gated));
  d_product = wants_product ? product : at::Tensor();
}

void gate_backward(Activation activation, at::Tensor& gated, at::Tensor& raised, at::Tensor& d_product,
                   bool wants_product, const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  if (!has_fused_kernels({gated, raised, d_product, row_weights})) {
    gate_backward_plain(activation, gated, raised, d_product, wants_product, row_weights, d_row_weights);
    return;
  }
  const at::Tensor weights = row_weights.defined() ? row_weights.contiguous() : row_weights;
  const at::Tensor d_weights = weights.defined() ? at::empty_like(weights) : weights;
  if (!gated.is_meta()) {
    with_kernel_dtype(gated.scalar_type(), [&](auto number) {
      using S = decltype(number);
      const auto told = kernel_op<S>(activation, gated, raised, d_product, wants_product, weights, d_weights);
      if (is_for_cuda(gated)) {
        const auto launch = cuda::kernels()->of<S>().gate.backward;
        return expect_launched(launch(cuda_queue(gated), told, gated.size(0)), "gate backward");
      }
      at::parallel_for(0, gated.size(0), rows_per_thread(told.size), [&](int64_t begin, int64_t end) {
        cpu::kernels().of<S>().elementwise.gate.backward(told, begin, end);
      });
    });
  }
  if (weights.defined()) *d_row_weights = d_weights;
  if (!wants_product) d_product.reset();
}

GatedMlpSaved save_gated(const GatedMlp& mlp, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  return {mlp.gate->trainable() || mlp.up->trainable() ? x.detach() : at::Tensor(),
          linear_forward(*mlp.gate, x), linear_forward(*mlp.up, x)};
}

at::Tensor gated_product(const GatedMlp& mlp, const at::Tensor& x, GatedMlpSaved& saved, bool keep) {
  const at::NoGradGuard no_grad;
  GatedMlpSaved made = save_gated(mlp, x);
  at::Tensor product = gate(mlp.activation, made.gated, made.raised, /*overwrite=*/!keep);
  if (keep) saved = std::move(made);
  return product;
}

at::Tensor gated_mlp_backward(const GatedMlp& mlp, GatedMlpSaved&& saved, const at::Tensor& dy,
                              const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  at::Tensor gated = std::move(saved.gated), raised = std::move(saved.raised), product;
  linear_backward_input(*mlp.down, dy, product);  // the product's gradient, until the product takes its place
  gate_backward(mlp.activation, gated, raised, product, mlp.down->trainable(), row_weights, d_row_weights);
  if (product.defined()) linear_accumulate(*mlp.down, product, row_weights.defined() ? dy * row_weights : dy);
  product.reset();
  at::Tensor dx;
  linear_accumulate(*mlp.gate, saved.x, gated);
  linear_backward_input(*mlp.gate, gated, dx);
  gated.reset();
  linear_accumulate(*mlp.up, saved.x, raised);
  linear_backward_input(*mlp.up, raised, dx);
  return dx;
}

at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp, bool keep_all,
                     bool graph_only) {
  GatedMlpSaved saved;
  at::Tensor output;
  std::vector<at::Tensor> kept, inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  const bool keep = keep_all || needs_backward(inputs);
  if (graph_only) {
    const MemoryScope scope("MLP");
    saved = save_gated(mlp, x);
    output = unread(x);
  } else {
    const at::NoGradGuard no_grad;
    at::Tensor product;
    {
      const MemoryScope scope("MLP");
      product = gated_product(mlp, x, saved, keep);
      if (keep_all) kept = {activate(saved.gated, mlp.activation), product};
    }
    output = residual.defined() ? linear_add_forward(residual, product, *mlp.down)
                                : linear_forward(*mlp.down, product);
  }
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
