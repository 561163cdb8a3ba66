#include "streambp/ops/attention/attention_kernels.h"

#include <utility>

#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/attention/attention_fused.h"
#include "streambp/ops/fused.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The rows of x from last to first, in a new tensor.
at::Tensor reversed(const at::Tensor& x) {
  return x.flip({0});
}

}  // namespace

at::Tensor wide_output(const AttentionBlock& block) {
  const at::ScalarType wide = block.log_sum_exp.scalar_type();
  const at::Tensor output = block.output.to(wide);
  return block.remainder.defined() ? output + block.remainder.to(wide) : output;
}

void round_output(AttentionBlock& block, at::ScalarType dtype, bool with_remainder) {
  if (block.output.scalar_type() == dtype) return;
  const at::Tensor wide = std::exchange(block.output, block.output.to(dtype));
  if (with_remainder) block.remainder = (wide - block.output).to(dtype);
}

bool reads_remainder(const at::Tensor& q, const Scoring& scoring) {
  return q.scalar_type() != sum_dtype(q) && !has_device_attention(q, scoring);
}

AttentionBlock attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                      const Scoring& scoring) {
  if (visible != Visible::kFromOwn && has_device_attention(q, scoring))
    return device_attend(
        {.q = q, .k = k, .v = v, .causal = visible == Visible::kCausal, .scale = scoring.scale});
  if (has_fused_attention(q, scoring)) return attend_fused(q, k, v, visible, scoring);
  if (visible == Visible::kFromOwn) {  // causal, seen from the other end
    const AttentionBlock block = attend(reversed(q), reversed(k), reversed(v), Visible::kCausal, scoring);
    return {reversed(block.output), reversed(block.log_sum_exp)};
  }
  note_tiles(q, scoring);
  return attend_tiled(q, k, v, visible, scoring);
}

AttentionBlockGradients attend_backward(const at::Tensor& d_output, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& output,
                                        const at::Tensor& log_sum_exp, Visible visible,
                                        const Scoring& scoring) {
  if (visible != Visible::kFromOwn && has_device_attention(q, scoring)) {
    return device_attend_backward(
        {.q = q, .k = k, .v = v, .causal = visible == Visible::kCausal, .scale = scoring.scale}, d_output,
        {output, log_sum_exp});
  }
  if (has_fused_attention(q, scoring))
    return attend_backward_fused(d_output, q, k, v, output, log_sum_exp, visible, scoring);
  if (visible == Visible::kFromOwn) {
    const AttentionBlockGradients gradients =
        attend_backward(reversed(d_output), reversed(q), reversed(k), reversed(v), reversed(output),
                        reversed(log_sum_exp), Visible::kCausal, scoring);
    return {reversed(gradients.d_queries), reversed(gradients.d_keys), reversed(gradients.d_values)};
  }
  return attend_backward_tiled(d_output, q, k, v, output, log_sum_exp, visible, scoring);
}

namespace {

/// Outputs of S, log-sum-exps of W.
template <typename S, typename W>
cuda::Attended<S, W> attended(const AttentionBlock& block) {
  const at::Tensor &output = block.output, &sums = block.log_sum_exp;
  return {{kernel_data<S>(output), output.stride(0), output.stride(1)},
          kernel_data<W>(sums),
          sums.stride(0),
          sums.stride(1)};
}

/// Whether our kernels merge them: in half precision their log-sum-exps are wider, and one output may be.
bool has_fused_merge(const AttentionBlock& all, const AttentionBlock& block) {
  const auto is_served = [](const AttentionBlock& one) {
    return has_fused_kernels({one.output}) && one.output.stride(2) == 1 &&
           one.log_sum_exp.scalar_type() == sum_dtype(one.output);
  };
  return is_for_cuda(all.output) && is_served(all) && is_served(block) &&
         all.log_sum_exp.scalar_type() == block.log_sum_exp.scalar_type();
}

void merge_by_kernel(const AttentionBlock& all, const AttentionBlock& block) {
  const at::Tensor& output = all.output;
  const bool is_wide = output.scalar_type() == all.log_sum_exp.scalar_type();
  const bool block_is_wide = block.output.scalar_type() == all.log_sum_exp.scalar_type();
  const at::ScalarType narrow = is_wide ? block.output.scalar_type() : output.scalar_type();
  if (!has_values(output)) return;
  with_kernel_dtype(narrow, [&](auto number) {
    using S = decltype(number);
    using W = cuda::Wide<S>;
    const auto& kernels = cuda::kernels()->of<S>().attention;
    const auto run = [&](auto kernel, const auto& whole, const auto& part) {
      expect_launched(kernel(cuda_queue(output), whole, part, output.size(0), output.size(1), output.size(2)),
                      "merge of attention");
    };
    if (is_wide == block_is_wide) {
      run(kernels.merge, attended<S, W>(all), attended<const S, const W>(block));
    } else if (is_wide) {
      run(kernels.merge_into_wide, attended<W, W>(all), attended<const S, const W>(block));
    } else {
      run(kernels.merge_wide, attended<S, W>(all), attended<const W, const W>(block));
    }
  });
}

}  // namespace

void merge(AttentionBlock& all, const AttentionBlock& block) {
  if (has_fused_merge(all, block)) {
    return merge_by_kernel(all, block);
  }
  const at::Tensor log_sum_exp = at::logaddexp(all.log_sum_exp, block.log_sum_exp);
  const at::Tensor share = (all.log_sum_exp - log_sum_exp).exp_().unsqueeze(-1);
  const at::Tensor block_share = (block.log_sum_exp - log_sum_exp).exp_().unsqueeze(-1);
  if (all.output.scalar_type() == share.scalar_type()) {
    all.output.mul_(share).addcmul_(block.output, block_share);
  } else {  // half precision is rounded once
    all.output.copy_((all.output * share).addcmul_(block.output, block_share));
  }
  all.log_sum_exp.copy_(log_sum_exp);
}

}  // namespace streambp
