#include "streambp/ops/attention_sinks.h"

#include "streambp/ops/row_runs.h"

namespace streambp {
namespace {

/// Rows that are widened at once, which bounds what half precision takes besides its tensors.
constexpr int64_t kRows = 1024;

}  // namespace

void add_sinks(AttentionBlock& all, const at::Tensor& sinks) {
  const at::Tensor scores = sinks.to(all.log_sum_exp.scalar_type());
  const at::Tensor share = (all.log_sum_exp - scores).sigmoid_().unsqueeze(-1);  // e^(l - l')
  if (all.output.scalar_type() == share.scalar_type()) {
    all.output.mul_(share);
  } else {
    for_each_row_run(all.output, kRows, [&](int64_t begin, int64_t rows) {
      const at::Tensor part = all.output.narrow(0, begin, rows);
      part.copy_(part.to(share.scalar_type()).mul_(share.narrow(0, begin, rows)));
    });
  }
  all.log_sum_exp.copy_(at::logaddexp(all.log_sum_exp, scores));
}

void accumulate_sinks(Parameter& sinks, const at::Tensor& d_output, const AttentionBlock& saved) {
  if (!sinks.trainable()) return;
  const at::ScalarType wide = saved.log_sum_exp.scalar_type();
  const at::Tensor scores = sinks.value.to(wide);
  at::Tensor sum = at::zeros({1, scores.size(0)}, scores.options());
  for_each_row_run(d_output, kRows, [&](int64_t begin, int64_t rows) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const at::Tensor along = (part(d_output).to(wide) * part(saved.output).to(wide)).sum(-1);  // [rows, H]
    const at::Tensor weights = (scores - part(saved.log_sum_exp)).exp_();
    sum.sub_(along.mul_(weights).sum(0, /*keepdim=*/true));
  });
  accumulate_sum(sinks, sum);
}

}  // namespace streambp
