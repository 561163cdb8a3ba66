#include "streambp/backprop/head/head_divergence.h"

#include <cmath>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/model/final_rows.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// KL of rows of log-probabilities [rows, V], [rows, 1].
at::Tensor relative_entropy(const at::Tensor& from, const at::Tensor& to) {
  return (from - to).mul_(from.exp()).sum(1, /*keepdim=*/true);
}

}  // namespace

at::Tensor head_logits(const Model& model, const at::Tensor& normed) {
  const at::Tensor logits = linear_forward(model.head(), normed.to(model.head_dtype()));
  return logits.to(sum_dtype(logits));
}

at::Tensor capped_logits(const Model& model, const at::Tensor& normed, at::Tensor* cap_slope) {
  at::Tensor logits = head_logits(model, normed);
  if (const double cap = model.config().final_logit_softcapping; cap > 0.0) {
    logits.div_(cap).tanh_();
    if (cap_slope != nullptr) *cap_slope = logits.square().neg_().add_(1.0);
    logits.mul_(cap);
  }
  return logits;
}

void log_softmax_(at::Tensor& logits, double temperature) {
  if (temperature != 1.0) logits.div_(temperature);
  at::_log_softmax_out(logits, logits, /*dim=*/-1, /*half_to_float=*/false);
}

void multiply_(at::Tensor& log_p, const SoftmaxSlope& slope) {
  if (!slope.factor.defined()) {
    log_p.exp_().mul_(slope.constant);
    return;
  }
  at::Tensor of_each = log_p * slope.factor;
  of_each.add_(slope.constant);
  if (slope.share.defined()) of_each.addcmul_(slope.log_q, slope.share, -1);
  log_p.exp_().mul_(of_each);
}

DivergenceRows::DivergenceRows(const HeadPass& pass, const at::Tensor& logits,
                               const std::function<at::Tensor()>& teacher_hidden)
    : pass_(pass) {
  const double tau = pass.request.divergence_temperature;
  const auto shared = [&](const at::Tensor& of) { return of.narrow(1, 0, pass.shared_vocabulary()); };
  const Model& teacher = *pass.teacher.model;
  log_other_ =
      shared(capped_logits(teacher, final_rows_forward(teacher, teacher_hidden()), nullptr)).contiguous();
  log_softmax_(log_other_, tau);
  log_other_ = log_other_.to(logits.scalar_type());
  if (pass.has_one_softmax()) return;
  log_own_ = shared(logits).div(tau);
  log_softmax_(log_own_, /*temperature=*/1.0);
}

at::Tensor DivergenceRows::values(const at::Tensor& log_p_of_request) {
  const MemoryScope scope("logits");
  const at::Tensor& log_p = log_own_.defined() ? log_own_ : log_p_of_request;
  if (is_forward()) return relative_entropy(log_other_, log_p);
  if (pass_.request.divergence == Divergence::kReverse) return excess_ = relative_entropy(log_p, log_other_);
  const double beta = pass_.request.jensen_shannon_beta;
  at::Tensor log_m = log_p + std::log1p(-beta);
  at::logaddexp_out(log_m, log_m, log_other_ + std::log(beta));
  const at::Tensor of_teacher = relative_entropy(log_other_, log_m);
  log_other_ = std::move(log_m);
  excess_ = relative_entropy(log_p, log_other_);
  return of_teacher * beta + excess_ * (1.0 - beta);
}

void DivergenceRows::add_slope(at::Tensor& d, SoftmaxSlope& slope) {
  SoftmaxSlope own{d};
  if (!is_forward()) {
    if (pass_.request.divergence == Divergence::kJensenShannon)
      d = d * (1.0 - pass_.request.jensen_shannon_beta);
    own = {-d * excess_, d, d, log_other_};
  }
  if (log_own_.defined()) {
    multiply_(log_own_, own);
    return;
  }
  slope.constant = slope.constant + own.constant;
  if (is_forward()) return;
  slope.factor = slope.factor.defined() ? slope.factor + own.factor : own.factor;
  slope.share = own.share;
  slope.log_q = log_other_;
}

void DivergenceRows::add_teacher(const at::Tensor& d, at::Tensor& d_scaled_logits) {
  if (is_forward()) (log_own_.defined() ? log_own_ : d_scaled_logits).addcmul_(log_other_.exp_(), d, -1);
}

void DivergenceRows::add_own_softmax(at::Tensor& d_logits) {
  if (log_own_.defined())
    d_logits.narrow(1, 0, log_own_.size(1)).add_(log_own_, 1.0 / pass_.request.divergence_temperature);
}

void DivergenceRows::reset() {
  log_other_.reset();
  log_own_.reset();
}

}  // namespace streambp
