#include "streambp/ops/attention/attention_sinks.h"

#include "streambp/ops/rows/row_runs.h"

namespace streambp {
namespace {

/// Rows that are widened at once, which bounds what half precision takes besides its tensors.
constexpr int64_t kSinkRows = 1024;

}  // namespace

void add_sinks(AttentionBlock& all, const at::Tensor& sinks) {
  const at::Tensor scores = sinks.to(all.log_sum_exp.scalar_type());
  const at::Tensor share = (all.log_sum_exp - scores).sigmoid_().unsqueeze(-1);  // e^(l - l')
  if (all.output.scalar_type() == share.scalar_type()) {
    all.output.mul_(share);
  } else {
    for_each_row_run(all.output, kSinkRows, [&](int64_t begin, int64_t rows) {
      const AttentionBlock part = all.rows(begin, rows);
      const at::Tensor wide = wide_output(part).mul_(share.narrow(0, begin, rows));
      part.output.copy_(wide);
      if (part.remainder.defined()) part.remainder.copy_(wide - part.output);
    });
  }
  all.log_sum_exp.copy_(at::logaddexp(all.log_sum_exp, scores));
}

void accumulate_sinks(Parameter& sinks, const at::Tensor& d_output, const AttentionBlock& saved) {
  if (!sinks.trainable()) return;
  const at::ScalarType wide = saved.log_sum_exp.scalar_type();
  const at::Tensor scores = sinks.value.to(wide);
  at::Tensor sum = at::zeros({1, scores.size(0)}, scores.options());
  for_each_row_run(d_output, kSinkRows, [&](int64_t begin, int64_t rows) {
    const AttentionBlock block = saved.rows(begin, rows);
    const at::Tensor along =
        (d_output.narrow(0, begin, rows).to(wide) * wide_output(block)).sum(-1);  // [rows, H]
    const at::Tensor weights = (scores - block.log_sum_exp).exp_();
    sum.sub_(along.mul_(weights).sum(0, /*keepdim=*/true));
  });
  accumulate_sum(sinks, sum);
}

}  // namespace streambp
