#include "streambp/ops/attention.h"

#include <algorithm>

#include "streambp/ops/attention_kernels.h"
#include "streambp/ops/differentiable.h"

namespace streambp {
namespace {

/// The prefix's gradients come out of the kernels as new tensors: by tiles they stay small beside the
/// stream's.
constexpr int64_t kPrefixTile = 1024;

/// One sequence's part of the run.
AttentionBlock attend_sequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const Prefix& prefix, double scale) {
  AttentionBlock own = attend(q, k, v, Visible::kCausal, scale);
  if (prefix.empty()) return own;
  return merge(own, attend(q, prefix.keys, prefix.values, Visible::kAll, scale));
}

/// Its backward pass; the prefix's share goes to the prefix's own buffers.
AttentionBlockGradients attend_sequence_backward(const at::Tensor& d_output, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionBlock& saved, const Prefix& prefix,
                                                 double scale) {
  AttentionBlockGradients own =
      attend_backward(d_output, q, k, v, saved.output, saved.log_sum_exp, Visible::kCausal, scale);
  if (prefix.empty()) return own;
  const int64_t length = prefix.keys.size(0);
  for (int64_t begin = 0; begin < length; begin += kPrefixTile) {
    const int64_t rows = std::min(kPrefixTile, length - begin);
    const AttentionBlockGradients tile =
        attend_backward(d_output, q, prefix.keys.narrow(0, begin, rows), prefix.values.narrow(0, begin, rows),
                        saved.output, saved.log_sum_exp, Visible::kAll, scale);
    own.d_queries.add_(tile.d_queries);
    if (prefix.key_gradients.defined()) {
      prefix.key_gradients.narrow(0, begin, rows).add_(tile.d_keys);
      prefix.value_gradients.narrow(0, begin, rows).add_(tile.d_values);
    }
  }
  return own;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<int64_t>& offsets, const Prefix& prefix, double scale) {
  // The parts of the sequences, in order. One sequence is the common case and needs no copy.
  const auto sequences = static_cast<int64_t>(offsets.size()) - 1;
  AttentionBlock all;
  {
    const at::NoGradGuard no_grad;
    if (sequences != 1) all.output = at::empty_like(q, at::MemoryFormat::Contiguous);
    for (int64_t i = 0; i < sequences; ++i) {
      const int64_t begin = offsets[i];
      const int64_t rows = offsets[i + 1] - begin;
      if (rows == 0) continue;
      AttentionBlock block = attend_sequence(q.narrow(0, begin, rows), k.narrow(0, begin, rows),
                                             v.narrow(0, begin, rows), i == 0 ? prefix : Prefix{}, scale);
      if (sequences == 1) {
        all = std::move(block);
      } else {
        if (!all.log_sum_exp.defined())
          all.log_sum_exp = at::empty({q.size(0), q.size(1)}, block.log_sum_exp.options());
        all.output.narrow(0, begin, rows).copy_(block.output);
        all.log_sum_exp.narrow(0, begin, rows).copy_(block.log_sum_exp);
      }
    }
  }
  return differentiable(
      {q, k, v}, all.output, "attention",
      [q = q.detach(), k = k.detach(), v = v.detach(), all, offsets, prefix, scale,
       sequences](std::vector<at::Tensor>&& dy) {
        AttentionBlockGradients gradients;
        if (sequences != 1) gradients = {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
        for (int64_t i = 0; i < sequences; ++i) {
          const int64_t begin = offsets[i];
          const int64_t rows = offsets[i + 1] - begin;
          if (rows == 0) continue;
          const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
          AttentionBlockGradients block = attend_sequence_backward(part(dy[0]), part(q), part(k), part(v),
                                                                   {part(all.output), part(all.log_sum_exp)},
                                                                   i == 0 ? prefix : Prefix{}, scale);
          if (sequences == 1) {
            gradients = std::move(block);
          } else {
            part(gradients.d_queries).copy_(block.d_queries);
            part(gradients.d_keys).copy_(block.d_keys);
            part(gradients.d_values).copy_(block.d_values);
          }
        }
        return std::vector<at::Tensor>{gradients.d_queries, gradients.d_keys, gradients.d_values};
      });
}

}  // namespace streambp
