#include "streambp/ops/attention_kernels.h"

namespace streambp {
namespace {

/// [n, heads, E] as the kernels' [1, heads, n, E], without a copy.
at::Tensor as_heads(const at::Tensor& rows) {
  return rows.transpose(0, 1).unsqueeze(0);
}

/// [1, heads, n, E] back to [n, heads, E].
at::Tensor as_rows(const at::Tensor& heads) {
  return heads.squeeze(0).transpose(0, 1);
}

at::ScalarType sum_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

AttentionBlock attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                      double scale) {
  if (q.is_meta())
    return {at::empty_like(q), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_dtype(q)))};
  if (!q.is_cpu()) return attend_tiled(q, k, v, visible, scale);
  const auto [output, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
      as_heads(q), as_heads(k), as_heads(v), /*dropout_p=*/0.0, visible == Visible::kCausal, /*attn_mask=*/{},
      scale);
  return {as_rows(output), log_sum_exp.squeeze(0).t()};
}

AttentionBlockGradients attend_backward(const at::Tensor& d_output, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& output,
                                        const at::Tensor& log_sum_exp, Visible visible, double scale) {
  if (q.is_meta()) return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  if (!q.is_cpu()) return attend_backward_tiled(d_output, q, k, v, output, log_sum_exp, visible, scale);
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      as_heads(d_output), as_heads(q), as_heads(k), as_heads(v), as_heads(output),
      log_sum_exp.t().unsqueeze(0),
      /*dropout_p=*/0.0, visible == Visible::kCausal, /*attn_mask=*/{}, scale);
  return {as_rows(dq), as_rows(dk), as_rows(dv)};
}

AttentionBlock merge(const AttentionBlock& a, const AttentionBlock& b) {
  const at::Tensor log_sum_exp = at::logaddexp(a.log_sum_exp, b.log_sum_exp);
  const at::Tensor share_a = (a.log_sum_exp - log_sum_exp).exp_().unsqueeze(-1);
  const at::Tensor share_b = (b.log_sum_exp - log_sum_exp).exp_().unsqueeze(-1);
  at::Tensor output = (a.output * share_a).addcmul_(b.output, share_b);
  return {output.to(a.output.scalar_type()), log_sum_exp};
}

}  // namespace streambp
