// The clamped gate of GPT-OSS and MiniMax M3, forward and backward, op by op in ATen. See mlp.h.
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rows/row_runs.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Rows that are worked on at once, which bounds the intermediate tensors.
constexpr int64_t kGateRows = 512;

/// What the product of some rows is made of, [r, F] each.
struct Factors {
  at::Tensor gate;     // clamped
  at::Tensor sigmoid;  // of alpha times that
  at::Tensor up;       // clamped, plus 1

  Factors(const ClampedGate& settings, const at::Tensor& gate_proj, const at::Tensor& up_proj) {
    const at::ScalarType wide = sum_dtype(gate_proj);
    gate = gate_proj.to(wide).clamp_max(settings.limit);
    sigmoid = (gate * settings.alpha).sigmoid_();
    up = up_proj.to(wide).clamp(-settings.limit, settings.limit).add_(1.0);
  }
};

}  // namespace

at::Tensor clamped_gate(const ClampedGate& gate, const at::Tensor& gate_proj, const at::Tensor& up_proj) {
  const at::NoGradGuard no_grad;
  const at::Tensor product = at::empty(gate_proj.sizes(), gate_proj.options());
  for_each_row_run(gate_proj, kGateRows, [&](int64_t begin, int64_t rows) {
    Factors factors(gate, gate_proj.narrow(0, begin, rows), up_proj.narrow(0, begin, rows));
    product.narrow(0, begin, rows).copy_(factors.gate.mul_(factors.sigmoid).mul_(factors.up));
  });
  return product;
}

void clamped_gate_backward(const ClampedGate& gate, const at::Tensor& gate_proj, const at::Tensor& up_proj,
                           at::Tensor& d_product, bool wants_product, const at::Tensor& row_weights,
                           at::Tensor* d_row_weights) {
  const at::NoGradGuard no_grad;
  const at::ScalarType wide = sum_dtype(gate_proj);
  if (row_weights.defined()) *d_row_weights = at::empty(row_weights.sizes(), row_weights.options());
  for_each_row_run(gate_proj, kGateRows, [&](int64_t begin, int64_t rows) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const at::Tensor raw_gate = part(gate_proj), raw_up = part(up_proj);
    Factors factors(gate, raw_gate, raw_up);
    at::Tensor d = part(d_product).to(wide);
    const at::Tensor activated = factors.gate * factors.sigmoid;
    if (wants_product || row_weights.defined()) {
      const at::Tensor product = activated * factors.up;
      if (row_weights.defined()) {
        part(*d_row_weights).copy_((product * d).sum(1, /*keepdim=*/true));
        d = d * part(row_weights);
      } else {
        d = d.clone();
      }
      if (wants_product) part(d_product).copy_(product);
    }
    const at::Tensor wide_up = raw_up.to(wide);  // two masks: ATen has no abs for dry runs
    const at::Tensor d_up =
        (activated * d).masked_fill_(wide_up.gt(gate.limit), 0.0).masked_fill_(wide_up.lt(-gate.limit), 0.0);
    // The slope of g sigmoid(alpha g): sigmoid (1 + alpha g (1 - sigmoid)).
    const at::Tensor slope = factors.sigmoid.neg().add_(1.0).mul_(factors.gate).mul_(gate.alpha).add_(1.0);
    const at::Tensor d_gate = slope.mul_(factors.sigmoid).mul_(factors.up).mul_(d);
    d_gate.masked_fill_(raw_gate.to(wide).gt(gate.limit), 0.0);
    raw_gate.copy_(d_gate);
    raw_up.copy_(d_up);
  });
  if (!wants_product) d_product.reset();
}

at::Tensor clamped_gate(const ClampedGate& gate, const at::Tensor& gate_up) {
  return clamped_gate(gate, gate_up.slice(1, 0, {}, 2), gate_up.slice(1, 1, {}, 2));
}

void clamped_gate_backward(const ClampedGate& gate, at::Tensor& gate_up, at::Tensor& d_product,
                           bool wants_product, const at::Tensor& row_weights, at::Tensor* d_row_weights) {
  clamped_gate_backward(gate, gate_up.slice(1, 0, {}, 2), gate_up.slice(1, 1, {}, 2), d_product,
                        wants_product, row_weights, d_row_weights);
}

}  // namespace streambp
