// The distributions of a chunk's rows, one class for each kind of request: see head_chunk.h.
#include <utility>

#include "streambp/backprop/head/head_chunk.h"
#include "streambp/backprop/head/head_divergence.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/head/target_head.h"
#include "streambp/ops/head/target_softmax.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// The gradient of the targets' log-probabilities, 0 where a row has no target.
at::Tensor masked(const HeadRows& rows, const at::Tensor& d_log_probabilities) {
  return rows.has_target.defined() ? d_log_probabilities * rows.has_target : d_log_probabilities;
}

/// Through the LM head, for the gradient of its logits [rows, V].
at::Tensor head_backward(const HeadRows& rows, const at::Tensor& d_logits) {
  const Linear& head = rows.pass.model.head();
  at::Tensor d_normed;
  linear_accumulate(head, rows.normed, d_logits);
  linear_backward_input(head, d_logits, d_normed);
  return d_normed;
}

/// The targets' log-probabilities alone, logits included by one kernel.
class ByTargetHead final : public Distributions {
 public:
  ByTargetHead(const HeadRows& rows, bool goes_back)
      : rows_(rows),
        head_(std::in_place, rows.pass.model.head(), rows.normed, rows.targets.squeeze(1),
              rows.pass.request.temperature),
        log_probabilities_(head_->log_probabilities(goes_back)) {}

  void values(TokenValues& values) override {
    values.log_probabilities = log_probabilities_;
    if (rows_.has_target.defined()) values.log_probabilities.mul_(rows_.has_target);
  }

  at::Tensor backward(const TokenValues& d_values) override {
    at::Tensor d_normed = head_->backward(masked(rows_, d_values.log_probabilities));
    head_.reset();
    return d_normed;
  }

 private:
  HeadRows rows_;
  std::optional<TargetHead> head_;
  at::Tensor log_probabilities_;  // [rows] float64
};

/// Logits of rows as target_log_probabilities takes them. Those in bfloat16 stay so: they are widened as they
/// are read, with the bits of a float32 copy and a third of the memory of both.
at::Tensor target_logits(const HeadRows& rows) {
  const at::Tensor logits = linear_forward(rows.pass.model.head(), rows.normed);
  return logits.scalar_type() == at::kBFloat16 ? logits : logits.to(sum_dtype(logits));
}

/// The targets' log-probabilities alone, from logits that become their own gradient.
class ByTargetSoftmax final : public Distributions {
 public:
  explicit ByTargetSoftmax(const HeadRows& rows)
      : rows_(rows),
        logits_(target_logits(rows)),
        log_probabilities_(
            target_log_probabilities(logits_, rows.targets, rows.pass.request.temperature, sums_)) {}

  void values(TokenValues& values) override {
    values.log_probabilities = log_probabilities_;
    if (rows_.has_target.defined()) values.log_probabilities.mul_(rows_.has_target);
  }

  at::Tensor backward(const TokenValues& d_values) override {
    return head_backward(rows_, logits_gradient(masked(rows_, d_values.log_probabilities)));
  }

 private:
  at::Tensor logits_gradient(const at::Tensor& d_log_probabilities) {
    const MemoryScope scope("logits");
    target_log_probabilities_backward(logits_, rows_.targets, rows_.pass.request.temperature, sums_,
                                      d_log_probabilities);
    return std::exchange(logits_, {}).to(rows_.normed.scalar_type());
  }

  HeadRows rows_;
  at::Tensor sums_;               // [rows, 2] float64: what the gradient needs in addition to the logits
  at::Tensor logits_;             // [rows, V]
  at::Tensor log_probabilities_;  // [rows] float64
};

/// Any request, from the whole log-softmax.
class ByLogSoftmax final : public Distributions {
 public:
  explicit ByLogSoftmax(const HeadRows& rows)
      : rows_(rows), log_p_(capped_logits(rows.pass.model, rows.normed, &cap_slope_)) {
    if (rows.pass.request.divergence != Divergence::kNone)
      divergence_.emplace(rows.pass, log_p_, rows.teacher_hidden);
    const double temperature = rows.pass.request.temperature;
    // Before the logits are gone: next to certainty a log-softmax has lost what the target's gradient is made
    // of.
    if (has_target_softmax(rows.pass.model.device()))
      of_target_ = target_log_probabilities(log_p_, rows.targets, temperature, sums_);
    log_softmax_(log_p_, temperature);
    if (of_target_.defined())
      log_p_.scatter_(1, rows.targets, of_target_.to(log_p_.scalar_type()).unsqueeze(1));
  }

  void values(TokenValues& values) override;
  at::Tensor backward(const TokenValues& d_values) override {
    return head_backward(rows_, logits_gradient(d_values));
  }

 private:
  at::Tensor logits_gradient(const TokenValues& d_values);

  HeadRows rows_;
  at::Tensor sums_, of_target_;  // of target_log_probabilities; undefined where there are no kernels for it
  at::Tensor cap_slope_;         // [rows, V], only where logits are capped: 1 - tanh^2
  at::Tensor log_p_;             // [rows, V]: logits, then their log-softmax, in the end the logits' gradient
  at::Tensor entropy_;           // [rows, 1], in the dtype of the logits
  std::optional<DivergenceRows> divergence_;
};

void ByLogSoftmax::values(TokenValues& values) {
  const HeadRequest& request = rows_.pass.request;
  values.log_probabilities =
      of_target_.defined() ? of_target_.clone() : to_column(log_p_.gather(1, rows_.targets));
  if (rows_.has_target.defined()) values.log_probabilities.mul_(rows_.has_target);
  if (request.entropies) {
    const MemoryScope scope("logits");
    entropy_ = log_p_.exp().mul_(log_p_).sum(1, /*keepdim=*/true).neg_();
    values.entropies = to_column(entropy_);
  }
  if (request.mean_log_probabilities)
    values.mean_log_probabilities = to_column(log_p_.mean(1, /*keepdim=*/true));
  if (request.log_sum_squares) {
    const MemoryScope scope("logits");
    values.log_sum_squares = to_column(log_sum_squares(log_p_).unsqueeze(1));
  }
  if (divergence_) values.divergences = to_column(divergence_->values(log_p_));
}

at::Tensor ByLogSoftmax::logits_gradient(const TokenValues& d_values) {
  const MemoryScope scope("logits");
  const HeadRequest& request = rows_.pass.request;
  const auto as_rows = [&](const at::Tensor& d) { return d.to(log_p_.scalar_type()).unsqueeze(1); };
  at::Tensor d_target = as_rows(d_values.log_probabilities);
  if (rows_.has_target.defined()) d_target = d_target * rows_.has_target.unsqueeze(1);
  // With p the softmax of the scaled logits u:  d log p_target / du = onehot - p,  d mean log p / du = 1/V -
  // p,  dH / du = -p (log p + H).
  SoftmaxSlope slope{-d_target};
  if (d_values.mean_log_probabilities.defined())
    slope.constant = slope.constant - as_rows(d_values.mean_log_probabilities);
  if (d_values.entropies.defined()) {
    const at::Tensor d = as_rows(d_values.entropies);
    slope.constant = slope.constant - d * entropy_;
    slope.factor = -d;
  }
  at::Tensor d_divergence;
  if (d_values.divergences.defined()) {
    d_divergence = as_rows(d_values.divergences);
    divergence_->add_slope(d_divergence, slope);
  }
  // The target's entry has 1 - p for onehot - p, with all its digits.
  at::Tensor at_target;
  if (of_target_.defined()) {
    SoftmaxSlope others{slope.constant + d_target, slope.factor, slope.share,
                        slope.log_q.defined() ? slope.log_q.gather(1, rows_.targets) : at::Tensor()};
    at_target = log_p_.gather(1, rows_.targets);
    multiply_(at_target, others);
    at_target.addcmul_(d_target, as_rows(at::expm1(of_target_).neg_()));
  }
  multiply_(log_p_, slope);
  if (at_target.defined()) log_p_.scatter_(1, rows_.targets, at_target);
  if (d_values.mean_log_probabilities.defined()) {
    log_p_.add_(as_rows(d_values.mean_log_probabilities), 1.0 / static_cast<double>(log_p_.size(1)));
  }
  if (!at_target.defined()) log_p_.scatter_add_(1, rows_.targets, d_target);
  if (d_divergence.defined()) divergence_->add_teacher(d_divergence, log_p_);
  if (request.temperature != 1.0) log_p_.div_(request.temperature);
  if (d_divergence.defined()) divergence_->add_own_softmax(log_p_);
  if (cap_slope_.defined()) log_p_.mul_(cap_slope_);
  cap_slope_.reset();
  if (divergence_) divergence_->reset();
  at::Tensor gradient = log_p_.to(rows_.normed.scalar_type());
  log_p_.reset();
  return gradient;
}

/// Whether the request is for log-probabilities of uncapped logits alone, on a device with kernels for them.
bool asks_for_targets_alone(const HeadPass& pass) {
  return has_target_softmax(pass.model.device()) && pass.request.needs_targets_alone() &&
         pass.model.config().final_logit_softcapping == 0.0;
}

}  // namespace

std::unique_ptr<Distributions> make_distributions(const HeadRows& rows, bool goes_back) {
  if (!asks_for_targets_alone(rows.pass)) return std::make_unique<ByLogSoftmax>(rows);
  if (!TargetHead::serves(rows.pass.model.head(), rows.normed))
    return std::make_unique<ByTargetSoftmax>(rows);
  return std::make_unique<ByTargetHead>(rows, goes_back);
}

}  // namespace streambp
