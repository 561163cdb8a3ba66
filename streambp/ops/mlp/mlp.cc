#include "streambp/ops/mlp/mlp.h"

#include <array>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/fused.h"

namespace streambp {
namespace {

const char* approximation(Activation activation) {
  return activation == Activation::kGelu ? "none" : "tanh";
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) return x.clamp_min(0.0);
  return activation == Activation::kSilu ? at::silu(x) : at::gelu(x, approximation(activation));
}

void activate_in_place(at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) {
    x.clamp_min_(0.0);
  } else if (activation == Activation::kSilu) {
    at::silu_(x);
  } else {
    at::gelu_(x, approximation(activation));
  }
}

/// Turns d_activated into the gradient of x, in place.
void activate_backward(at::Tensor& d_activated, const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) {
    d_activated.masked_fill_(x.le(0.0), 0.0);
  } else if (activation == Activation::kSilu) {
    at::silu_backward_out(d_activated, d_activated, x);
  } else {
    at::gelu_backward_out(d_activated, d_activated, x, approximation(activation));
  }
}

/// Whether our kernels know the activation: they have no erf, and no ReLU.
bool has_kernel_of(Activation activation) {
  return activation == Activation::kSilu || activation == Activation::kGeluTanh;
}

template <typename S>
cpu::GateBackward<S> kernel_args(Activation activation, const at::Tensor& gate_proj,
                                 const at::Tensor& up_proj, const at::Tensor& d_product, bool wants_product,
                                 const at::Tensor& row_weights, const at::Tensor& d_row_weights) {
  return {.activation = activation,
          .size = gate_proj.size(1),
          .gate = kernel_data<S>(gate_proj),
          .up = kernel_data<S>(up_proj),
          .d_product = kernel_data<S>(d_product),
          .wants_product = wants_product,
          .row_weights = kernel_data<const S>(row_weights),
          .d_row_weights = kernel_data<S>(d_row_weights)};
}

}  // namespace

at::Tensor gate_plain(Activation activation, const at::Tensor& gate_proj, const at::Tensor& up_proj) {
  return activate(gate_proj, activation).mul_(up_proj);
}

at::Tensor gate(Activation activation, const at::Tensor& gate_proj, const at::Tensor& up_proj,
                bool overwrite) {
  if (!has_kernel_of(activation) || !has_fused_kernels({gate_proj, up_proj}))
    return gate_plain(activation, gate_proj, up_proj);
  at::Tensor product = overwrite ? gate_proj : at::empty_like(gate_proj);
  launch_for(gate_proj, [&](auto number) {
    using S = decltype(number);
    if (is_for_cuda(gate_proj)) {
      const auto launch = cuda::kernels()->of<S>().gate.product;
      return expect_launched(
          launch(cuda_queue(gate_proj), activation, kernel_data<const S>(gate_proj),
                 kernel_data<const S>(up_proj), kernel_data<S>(product), gate_proj.numel()),
          "gate");
    }
    const auto run = cpu::kernels().of<S>().elementwise.gate.product;
    at::parallel_for(0, gate_proj.numel(), rows_per_thread(1), [&](int64_t begin, int64_t end) {
      run(activation, kernel_data<const S>(gate_proj), kernel_data<const S>(up_proj), kernel_data<S>(product),
          begin, end);
    });
  });
  return product;
}

void gate_backward_plain(Activation activation, at::Tensor& gate_proj, at::Tensor& up_proj,
                         at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights,
                         at::Tensor* d_row_weights) {
  at::Tensor product;
  if (wants_product || row_weights.defined()) product = gate_plain(activation, gate_proj, up_proj);
  if (row_weights.defined()) {
    *d_row_weights = (product * d_product).sum(1, /*keepdim=*/true);
    d_product.mul_(row_weights);
  }
  // The activation is computed again, in place, rather than held as well as the product.
  up_proj.mul_(d_product);
  activate_backward(up_proj, gate_proj, activation);
  activate_in_place(gate_proj, activation);
  gate_proj = std::exchange(up_proj, d_product.mul_(gate_proj));
  d_product = wants_product ? product : at::Tensor();
}

void gate_backward(Activation activation, at::Tensor& gate_proj, at::Tensor& up_proj, at::Tensor& d_product,
                   bool wants_product, const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  if (!has_kernel_of(activation) || !has_fused_kernels({gate_proj, up_proj, d_product, row_weights})) {
    gate_backward_plain(activation, gate_proj, up_proj, d_product, wants_product, row_weights, d_row_weights);
    return;
  }
  const at::Tensor weights = row_weights.defined() ? row_weights.contiguous() : row_weights;
  const at::Tensor d_weights = weights.defined() ? at::empty_like(weights) : weights;
  launch_for(gate_proj, [&](auto number) {
    using S = decltype(number);
    const auto args =
        kernel_args<S>(activation, gate_proj, up_proj, d_product, wants_product, weights, d_weights);
    if (is_for_cuda(gate_proj)) {
      const auto launch = cuda::kernels()->of<S>().gate.backward;
      return expect_launched(launch(cuda_queue(gate_proj), args, gate_proj.size(0)), "gate backward");
    }
    at::parallel_for(0, gate_proj.size(0), rows_per_thread(args.size), [&](int64_t begin, int64_t end) {
      cpu::kernels().of<S>().elementwise.gate.backward(args, begin, end);
    });
  });
  if (weights.defined()) *d_row_weights = d_weights;
  if (!wants_product) d_product.reset();
}

at::Tensor limited_gate(Activation activation, double limit, const at::Tensor& gate_proj,
                        const at::Tensor& up_proj) {
  return activate(gate_proj, activation).clamp_max_(limit).mul_(up_proj.clamp(-limit, limit));
}

void limited_gate_backward(Activation activation, double limit, at::Tensor& gate_proj, at::Tensor& up_proj,
                           at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights,
                           at::Tensor* d_row_weights) {
  at::Tensor activated = activate(gate_proj, activation);
  const at::Tensor is_cut = activated.gt(limit);
  activated.clamp_max_(limit);
  const at::Tensor up = up_proj.clamp(-limit, limit);
  at::Tensor product;
  if (wants_product || row_weights.defined()) product = activated * up;
  if (row_weights.defined()) {
    *d_row_weights = (product * d_product).sum(1, /*keepdim=*/true);
    d_product.mul_(row_weights);
  }
  activated.mul_(d_product);
  for (const at::Tensor& beyond : {up_proj.gt(limit), up_proj.lt(-limit)})
    activated.masked_fill_(beyond, 0.0);
  d_product.mul_(up);
  activate_backward(d_product, gate_proj, activation);
  gate_proj = d_product.masked_fill_(is_cut, 0.0);
  up_proj = activated;
  d_product = wants_product ? product : at::Tensor();
}

at::Tensor squared_relu(const at::Tensor& x) {
  return x.clamp_min(0).square_();
}

void squared_relu_backward(at::Tensor& x, at::Tensor& d_product, bool wants_product,
                           const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  const at::Tensor positive = x.clamp_min_(0);
  at::Tensor product;
  if (wants_product || row_weights.defined()) product = positive.square();
  if (row_weights.defined()) {
    *d_row_weights = (product * d_product).sum(1, /*keepdim=*/true);
    d_product.mul_(row_weights);
  }
  x.mul_(d_product).mul_(2);
  d_product = wants_product ? product : at::Tensor();
}

namespace {

/// The product of an MLP with gate_proj and up_proj, and its backward pass.
at::Tensor product_of_two_maps(const GatedMlp& mlp, const GatedMlpSaved& saved, bool overwrite) {
  if (mlp.is_clamped) return clamped_gate(mlp.clamped, saved.gate_proj, saved.up_proj);
  if (mlp.limit == 0.0) return gate(mlp.activation, saved.gate_proj, saved.up_proj, overwrite);
  if (mlp.limits_activated) return limited_gate(mlp.activation, mlp.limit, saved.gate_proj, saved.up_proj);
  return gate(mlp.activation, saved.gate_proj.clamp_max(mlp.limit),
              saved.up_proj.clamp(-mlp.limit, mlp.limit), /*overwrite=*/true);
}
void product_of_two_maps_backward(const GatedMlp& mlp, GatedMlpSaved& saved, at::Tensor& d_product,
                                  bool wants_product, const at::Tensor& row_weights,
                                  at::Tensor* d_row_weights) {
  if (mlp.is_clamped) {
    clamped_gate_backward(mlp.clamped, saved.gate_proj, saved.up_proj, d_product, wants_product, row_weights,
                          d_row_weights);
    return;
  }
  if (mlp.limits_activated) {
    limited_gate_backward(mlp.activation, mlp.limit, saved.gate_proj, saved.up_proj, d_product, wants_product,
                          row_weights, d_row_weights);
    return;
  }
  at::Tensor gate_cut, up_cut;
  if (mlp.limit > 0.0) {
    gate_cut = saved.gate_proj > mlp.limit;
    up_cut = (saved.up_proj > mlp.limit) | (saved.up_proj < -mlp.limit);
    saved.gate_proj.clamp_max_(mlp.limit);
    saved.up_proj.clamp_(-mlp.limit, mlp.limit);
  }
  gate_backward(mlp.activation, saved.gate_proj, saved.up_proj, d_product, wants_product, row_weights,
                d_row_weights);
  if (mlp.limit == 0.0) return;
  saved.gate_proj.masked_fill_(gate_cut, 0.0);
  saved.up_proj.masked_fill_(up_cut, 0.0);
}

/// The product of an MLP with gate_up_proj, and its backward pass.
at::Tensor product_of_one_map(const GatedMlp& mlp, const at::Tensor& x) {
  return mlp.activation == Activation::kRelu2 ? squared_relu(x) : clamped_gate(mlp.clamped, x);
}
void product_of_one_map_backward(const GatedMlp& mlp, at::Tensor& x, at::Tensor& d_product,
                                 bool wants_product, const at::Tensor& row_weights,
                                 at::Tensor* d_row_weights) {
  if (mlp.activation == Activation::kRelu2) {
    squared_relu_backward(x, d_product, wants_product, row_weights, d_row_weights);
  } else {
    clamped_gate_backward(mlp.clamped, x, d_product, wants_product, row_weights, d_row_weights);
  }
}

/// `known`: null, or what is taken instead of computing it.
GatedMlpSaved save_gated(const GatedMlp& mlp, const at::Tensor& x, const GatedProjections* known) {
  const at::NoGradGuard no_grad;
  GatedMlpSaved saved;
  if (mlp.trains_input_maps()) saved.x = x.detach();
  if (mlp.gate_up_proj != nullptr) {
    saved.gate_proj = linear_forward(*mlp.gate_up_proj, x);
    return saved;
  }
  const bool knows = known != nullptr && known->gate.defined();
  saved.gate_proj = knows ? known->gate : linear_forward(*mlp.gate_proj, x);
  saved.up_proj = knows ? known->up : linear_forward(*mlp.up_proj, x);
  return saved;
}

}  // namespace

GatedMlpSaved save_gated(const GatedMlp& mlp, const at::Tensor& x) {
  return save_gated(mlp, x, nullptr);
}

at::Tensor gated_product(const GatedMlp& mlp, const at::Tensor& x, GatedMlpSaved& saved, bool keep) {
  const at::NoGradGuard no_grad;
  GatedMlpSaved made = save_gated(mlp, x);
  at::Tensor product = mlp.gate_up_proj != nullptr ? product_of_one_map(mlp, made.gate_proj)
                                                   : product_of_two_maps(mlp, made, /*overwrite=*/!keep);
  if (keep) saved = std::move(made);
  return product;
}

namespace {

/// Adds to `d_row_weights` [n, 1] what the map's biases make of it: they are weighted with the rest of its
/// output.
void add_part_of_biases(const Linear& map, const at::Tensor& dy, at::Tensor& d_row_weights) {
  const auto add = [&](const Parameter* bias, double scale) {
    if (bias != nullptr) d_row_weights.squeeze(1).add_(at::mv(dy, bias->value), scale);
  };
  add(map.bias, map.output_scale);
  if (map.adapter && map.adapter->enabled) add(map.adapter->bias, map.output_scale * map.adapter->scale);
}

}  // namespace

at::Tensor gated_mlp_backward(const GatedMlp& mlp, GatedMlpSaved&& saved, const at::Tensor& dy,
                              const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  at::Tensor product;  // its gradient, until the product is written over it
  linear_backward_input(*mlp.down_proj, dy, product);
  const bool wants_product = mlp.down_proj->trainable();
  if (mlp.gate_up_proj != nullptr) {
    product_of_one_map_backward(mlp, saved.gate_proj, product, wants_product, row_weights, d_row_weights);
  } else {
    product_of_two_maps_backward(mlp, saved, product, wants_product, row_weights, d_row_weights);
  }
  if (row_weights.defined()) add_part_of_biases(*mlp.down_proj, dy, *d_row_weights);
  if (product.defined())
    linear_accumulate(*mlp.down_proj, product, row_weights.defined() ? dy * row_weights : dy);
  product.reset();
  at::Tensor dx;
  std::array<at::Tensor, 2> gradients{std::move(saved.gate_proj), std::move(saved.up_proj)};
  const std::vector<const Linear*> maps = mlp.input_maps();
  for (size_t i = 0; i < maps.size(); ++i) {
    linear_accumulate(*maps[i], saved.x, gradients[i]);
    linear_backward_input(*maps[i], gradients[i], dx);
    gradients[i].reset();
  }
  return dx;
}

at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp, bool graph_only,
                     GatedProjections* known) {
  GatedMlpSaved saved;
  at::Tensor output;
  std::vector<at::Tensor> inputs{x};
  if (residual.defined()) inputs.push_back(residual);
  const bool keep = needs_backward(inputs);  // asked before autograd is off
  if (graph_only) {
    const MemoryScope scope("MLP");
    saved = save_gated(mlp, x, known);
    output = unread(x);
  } else {
    const at::NoGradGuard no_grad;
    at::Tensor product;
    if (const MemoryScope scope("MLP"); known == nullptr) {
      product = gated_product(mlp, x, saved, keep);
    } else {
      saved = save_gated(mlp, x, known);
      product = product_of_two_maps(mlp, saved, /*overwrite=*/false);
    }
    output = residual.defined() ? linear_add_forward(residual, product, *mlp.down_proj)
                                : linear_forward(*mlp.down_proj, product);
  }
  if (known != nullptr) *known = {saved.gate_proj, saved.up_proj};
  const MemoryScope scope("MLP");  // that of the backward pass; the output is the caller's
  return differentiable(inputs, std::move(output), "gated_mlp",
                        [&mlp, saved, inputs = inputs.size()](std::vector<at::Tensor>&& dy) mutable {
                          std::vector<at::Tensor> gradients{gated_mlp_backward(mlp, std::move(saved), dy[0])};
                          if (inputs == 2) gradients.push_back(dy[0]);
                          return gradients;
                        });
}

}  // namespace streambp
