// The gated MLP of a decoder, down(act(gate(x)) * up(x)), alone or as one of a mixture of experts.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/activation.h"

namespace streambp {

/// The gate of GPT-OSS and MiniMax M3: instead of act(g) u the product is g' sigmoid(alpha g') (u' + 1),
/// where g' = min(g, limit) and u' is u clamped to [-limit, limit].
struct ClampedGate {
  double alpha = 1.702;
  double limit = 7.0;
};

/// Maps gate_proj and up_proj [F, D], down_proj [D, F].
struct GatedMlp {
  const Linear* gate_proj = nullptr;
  const Linear* up_proj = nullptr;
  const Linear* down_proj = nullptr;
  Activation activation = Activation::kSilu;
  /// Instead of gate_proj and up_proj, which are null then, one map [2 F, D] whose rows are theirs in turn,
  /// the gate's first, with a clamped gate; or of activation kRelu2 the up projection [F, D] alone.
  const Linear* gate_up_proj = nullptr;
  ClampedGate clamped = {};
  /// Where it is not 0, of an MLP with gate_proj and up_proj: up is clamped to [-limit, limit], and gate is
  /// at most as much before the activation (Hunyuan 4), or act(gate) is (limits_activated: Step 3.7).
  double limit = 0.0;
  bool limits_activated = false;
  /// Whether an MLP with gate_proj and up_proj has the gate `clamped` (MiniMax M3).
  bool is_clamped = false;

  /// Those that read x.
  std::vector<const Linear*> input_maps() const {
    return gate_up_proj != nullptr ? std::vector{gate_up_proj} : std::vector{gate_proj, up_proj};
  }
  bool trains_input_maps() const {
    return gate_up_proj != nullptr ? gate_up_proj->trainable()
                                   : gate_proj->trainable() || up_proj->trainable();
  }
  bool trainable() const { return trains_input_maps() || down_proj->trainable(); }
};

/// What gate_proj and up_proj give, [n, F] each.
struct GatedProjections {
  at::Tensor gate;
  at::Tensor up;
};

/// What the backward pass needs. Of the four [n, F] tensors that plain autograd would keep (gate, its
/// activation, up, their product) two are kept: the activation and the product are cheaper to compute again
/// than to hold.
struct GatedMlpSaved {
  at::Tensor x;          // [n, D], undefined where gate and up are frozen
  at::Tensor gate_proj;  // [n, F]; of an MLP with gate_up_proj what that gives, [n, 2 F]
  at::Tensor up_proj;    // [n, F]; of an MLP with gate_up_proj undefined
};

/// What the backward pass of the MLP at x [n, D] needs.
GatedMlpSaved save_gated(const GatedMlp& mlp, const at::Tensor& x);

/// act(gate(x)) * up(x), [n, F], or what a clamped gate gives; without autograd. Without `keep` nothing is
/// saved.
at::Tensor gated_product(const GatedMlp& mlp, const at::Tensor& x, GatedMlpSaved& saved, bool keep = true);

/// act(gate_proj) * up_proj, written over `gate_proj` where `overwrite` is set and there is a kernel of
/// ours.
at::Tensor gate(Activation activation, const at::Tensor& gate_proj, const at::Tensor& up_proj,
                bool overwrite = false);

/// The backward pass of row_weights * gate(gate_proj, up_proj), in place: `gate_proj` and `up_proj` become
/// their gradients, and `d_product`, the gradient of the result, becomes the product before it was weighted
/// (is undefined afterwards where `wants_product` is not set). `row_weights` [n, 1] may be undefined; where
/// it is defined, `d_row_weights` receives its gradient.
void gate_backward(Activation activation, at::Tensor& gate_proj, at::Tensor& up_proj, at::Tensor& d_product,
                   bool wants_product, const at::Tensor& row_weights = {},
                   at::Tensor* d_row_weights = nullptr);

/// The clamped gate's product [n, F] of what gate and up projection give, which may be views with strides,
/// and its backward pass, which does what gate_backward does. Computed in float32 or wider.
at::Tensor clamped_gate(const ClampedGate& gate, const at::Tensor& gate_proj, const at::Tensor& up_proj);
void clamped_gate_backward(const ClampedGate& gate, const at::Tensor& gate_proj, const at::Tensor& up_proj,
                           at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights = {},
                           at::Tensor* d_row_weights = nullptr);
/// The same of `gate_up` [n, 2 F], whose columns are the gate's and the up projection's in turn.
at::Tensor clamped_gate(const ClampedGate& gate, const at::Tensor& gate_up);
void clamped_gate_backward(const ClampedGate& gate, at::Tensor& gate_up, at::Tensor& d_product,
                           bool wants_product, const at::Tensor& row_weights = {},
                           at::Tensor* d_row_weights = nullptr);

/// max(x, 0)^2 [n, F] of what the up projection alone gives, and its backward pass, which does with x what
/// gate_backward does with both.
at::Tensor squared_relu(const at::Tensor& x);
void squared_relu_backward(at::Tensor& x, at::Tensor& d_product, bool wants_product,
                           const at::Tensor& row_weights = {}, at::Tensor* d_row_weights = nullptr);

/// min(act(gate_proj), limit) clamp(up_proj, -limit, limit), and its backward pass, which does what
/// gate_backward does; op by op in ATen.
at::Tensor limited_gate(Activation activation, double limit, const at::Tensor& gate_proj,
                        const at::Tensor& up_proj);
void limited_gate_backward(Activation activation, double limit, at::Tensor& gate_proj, at::Tensor& up_proj,
                           at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights = {},
                           at::Tensor* d_row_weights = nullptr);

/// gate and gate_backward op by op in ATen: for devices without kernels of ours, and a second opinion for
/// tests.
at::Tensor gate_plain(Activation activation, const at::Tensor& gate_proj, const at::Tensor& up_proj);
void gate_backward_plain(Activation activation, at::Tensor& gate_proj, at::Tensor& up_proj,
                         at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights = {},
                         at::Tensor* d_row_weights = nullptr);

/// The gradient of x for the gradient dy [n, D] of the MLP's output; adds the parameters'. Consumes `saved`.
/// With `row_weights` [n, 1] the output was multiplied by them before it was used: `dy` is the gradient of
/// the product, and `d_row_weights` receives theirs [n, 1].
at::Tensor gated_mlp_backward(const GatedMlp& mlp, GatedMlpSaved&& saved, const at::Tensor& dy,
                              const at::Tensor& row_weights = {}, at::Tensor* d_row_weights = nullptr);

/// down(act(gate(x)) * up(x)) for x [n, D], with `residual` [n, D] added where it is defined. The maps must
/// outlive the graph. With `graph_only` the values are left out: the result is unread(). `known`: null (of an
/// MLP with gate_up_proj always), or
/// where the gate's and the up projection are received, or, if they are defined, taken from instead of being
/// computed again; the backward pass then writes over them.
at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp,
                     bool graph_only = false, GatedProjections* known = nullptr);

}  // namespace streambp
