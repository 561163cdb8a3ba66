#include "streambp/backprop/head_chunk.h"

#include <cmath>
#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/ops/rows.h"
#include "streambp/ops/target_softmax.h"

namespace streambp {
namespace {

/// Log-probabilities are taken in float32 or wider, as Hugging Face upcasts its logits.
at::ScalarType logits_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor to_column(const at::Tensor& rows) {
  return rows.squeeze(1).to(at::kDouble);
}

/// Logits of hidden states after the norm; `cap_slope` (may be null) receives their derivative by the
/// products before them, where the model caps its logits.
at::Tensor capped_logits(const Model& model, const at::Tensor& normed, at::Tensor* cap_slope) {
  at::Tensor logits = linear_forward(model.head(), normed).to(logits_dtype(model.dtype()));
  if (const double cap = model.config().final_logit_softcapping; cap > 0.0) {
    logits.div_(cap).tanh_();
    if (cap_slope != nullptr) *cap_slope = logits.square().neg_().add_(1.0);
    logits.mul_(cap);
  }
  return logits;
}

/// Logits become log softmax(logits / temperature).
void log_softmax_(at::Tensor& logits, double temperature) {
  if (temperature != 1.0) logits.div_(temperature);
  at::_log_softmax_out(logits, logits, /*dim=*/-1, /*half_to_float=*/false);
}

/// KL of rows of log-probabilities [rows, V], [rows, 1].
at::Tensor relative_entropy(const at::Tensor& from, const at::Tensor& to) {
  return (from - to).mul_(from.exp()).sum(1, /*keepdim=*/true);
}

/// What the softmax p of some logits u is multiplied by in a gradient of u: constant + factor log p - share
/// log q, [rows, 1] each and q [rows, V].
struct Slope {
  at::Tensor constant;
  at::Tensor factor = {};  // undefined: 0
  at::Tensor share = {};   // undefined: 0
  at::Tensor log_q = {};
};

/// log p becomes p times the slope.
void multiply_(at::Tensor& log_p, const Slope& slope) {
  if (!slope.factor.defined()) {
    log_p.exp_().mul_(slope.constant);
    return;
  }
  at::Tensor of_each = log_p * slope.factor;
  of_each.add_(slope.constant);
  if (slope.share.defined()) of_each.addcmul_(slope.log_q, slope.share, -1);
  log_p.exp_().mul_(of_each);
}

}  // namespace

HeadChunk::HeadChunk(const HeadPass& pass, const at::Tensor& hidden, int64_t offset, int64_t begin,
                     int64_t end, bool goes_back)
    : pass_(pass), offset_(offset) {
  const HeadTargets& scored = pass.scored;
  first_ = scored.indices.const_data_ptr<int64_t>()[begin];
  if (!scored.are_contiguous(begin, end)) {
    places_ = scored.indices.narrow(0, begin, end - begin).to(hidden.device(), /*non_blocking=*/true);
  }
  targets_ = scored.targets.narrow(0, begin, end - begin).unsqueeze(1);
  if (scored.has_target.defined()) has_target_ = scored.has_target.narrow(0, begin, end - begin);
  normed_ = rms_norm_forward(rows_of(hidden, offset), pass.model.norm(), saved_);
  if (!pass.request.log_probabilities) return;
  const MemoryScope scope("logits");
  if (is_plain() && TargetHead::serves(pass.model.head(), normed_)) {
    target_head_.emplace(pass.model.head(), normed_, targets_.squeeze(1), pass.request.temperature);
    plain_ = target_head_->log_probabilities(goes_back);
    return;
  }
  if (is_plain()) {
    log_p_ = linear_forward(pass.model.head(), normed_).to(logits_dtype(pass.model.dtype()));
    plain_ = target_log_probabilities(log_p_, targets_, pass.request.temperature, sums_);
    return;
  }
  log_p_ = capped_logits(pass.model, normed_, &cap_slope_);
  if (pass.request.divergence != Divergence::kNone) {
    const double tau = pass.request.divergence_temperature;
    const auto shared = [&](const at::Tensor& logits) {
      return logits.narrow(1, 0, pass.shared_vocabulary());
    };
    const Model& teacher = *pass.teacher.model;
    RmsNormSaved unused;
    log_other_ =
        shared(capped_logits(teacher,
                             rms_norm_forward(rows_of(pass.teacher.hidden, 0), teacher.norm(), unused),
                             nullptr))
            .contiguous();
    log_softmax_(log_other_, tau);
    log_other_ = log_other_.to(log_p_.scalar_type());
    if (!pass.has_one_softmax()) {
      log_d_ = shared(log_p_).div(tau);
      log_softmax_(log_d_, /*temperature=*/1.0);
    }
  }
  log_softmax_(log_p_, pass.request.temperature);
}

at::Tensor HeadChunk::rows_of(const at::Tensor& hidden, int64_t offset) const {
  // Neighbours are a view; others are gathered.
  return places_.defined() ? gather_rows(hidden, offset == 0 ? places_ : places_ - offset)
                           : hidden.narrow(0, first_ - offset, targets_.size(0));
}

bool HeadChunk::is_plain() const {
  const HeadRequest& request = pass_.request;
  return has_target_softmax(pass_.model.device()) && !request.entropies && !request.mean_log_probabilities &&
         !request.log_sum_squares && request.divergence == Divergence::kNone &&
         pass_.model.config().final_logit_softcapping == 0.0;
}

TokenValues HeadChunk::values() {
  const HeadRequest& request = pass_.request;
  TokenValues values;
  if (request.log_probabilities) {
    values.log_probabilities = plain_.defined() ? plain_ : to_column(log_p_.gather(1, targets_));
    if (has_target_.defined()) values.log_probabilities.mul_(has_target_);
  }
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
  if (request.values) values.values = to_column(linear_forward(pass_.model.value_head(), normed_));
  if (request.divergence != Divergence::kNone) values.divergences = to_column(divergences());
  return values;
}

at::Tensor HeadChunk::divergences() {
  const MemoryScope scope("logits");
  const at::Tensor& log_p = log_d_.defined() ? log_d_ : log_p_;
  if (pass_.request.divergence == Divergence::kForward) return relative_entropy(log_other_, log_p);
  if (pass_.request.divergence == Divergence::kReverse) return excess_ = relative_entropy(log_p, log_other_);
  const double beta = pass_.request.jensen_shannon_beta;
  at::Tensor log_m = log_p + std::log1p(-beta);
  at::logaddexp_out(log_m, log_m, log_other_ + std::log(beta));
  const at::Tensor of_teacher = relative_entropy(log_other_, log_m);
  log_other_ = std::move(log_m);
  excess_ = relative_entropy(log_p, log_other_);
  return of_teacher * beta + excess_ * (1.0 - beta);
}

at::Tensor HeadChunk::logits_gradient(const TokenValues& d_values) {
  const MemoryScope scope("logits");
  const HeadRequest& request = pass_.request;
  if (plain_.defined()) {
    at::Tensor d = d_values.log_probabilities;
    if (has_target_.defined()) d = d * has_target_;
    target_log_probabilities_backward(log_p_, targets_, request.temperature, sums_, d);
    return std::exchange(log_p_, {}).to(pass_.model.dtype());
  }
  const auto as_rows = [&](const at::Tensor& d) { return d.to(log_p_.scalar_type()).unsqueeze(1); };
  at::Tensor d_target = as_rows(d_values.log_probabilities);
  if (has_target_.defined()) d_target = d_target * has_target_.unsqueeze(1);
  // With p the softmax of the scaled logits u:  d log p_target / du = onehot - p,  d mean log p / du = 1/V -
  // p, dH / du = -p (log p + H),  d KL(t || p) / du = p - t,  d KL(p || t) / du = p (log p - log t - KL), and
  // d [beta KL(t || m) + (1 - beta) KL(p || m)] / du = (1 - beta) p (log p - log m - KL(p || m)).
  Slope slope{-d_target};
  if (d_values.mean_log_probabilities.defined())
    slope.constant = slope.constant - as_rows(d_values.mean_log_probabilities);
  if (d_values.entropies.defined()) {
    const at::Tensor d = as_rows(d_values.entropies);
    slope.constant = slope.constant - d * entropy_;
    slope.factor = -d;
  }
  const bool forward = request.divergence == Divergence::kForward;
  at::Tensor d_divergence;
  if (d_values.divergences.defined()) {
    d_divergence = as_rows(d_values.divergences);
    Slope of_divergence{d_divergence};
    if (!forward) {
      if (request.divergence == Divergence::kJensenShannon)
        d_divergence = d_divergence * (1.0 - request.jensen_shannon_beta);
      of_divergence = {-d_divergence * excess_, d_divergence, d_divergence, log_other_};
    }
    if (log_d_.defined()) {
      multiply_(log_d_, of_divergence);
    } else {
      slope.constant = slope.constant + of_divergence.constant;
      if (!forward) {
        slope.factor = slope.factor.defined() ? slope.factor + of_divergence.factor : of_divergence.factor;
        slope.share = of_divergence.share;
        slope.log_q = log_other_;
      }
    }
  }
  multiply_(log_p_, slope);
  if (d_values.mean_log_probabilities.defined()) {
    log_p_.add_(as_rows(d_values.mean_log_probabilities), 1.0 / static_cast<double>(log_p_.size(1)));
  }
  log_p_.scatter_add_(1, targets_, d_target);
  if (d_divergence.defined() && forward)
    (log_d_.defined() ? log_d_ : log_p_).addcmul_(log_other_.exp_(), d_divergence, -1);
  if (request.temperature != 1.0) log_p_.div_(request.temperature);
  if (d_divergence.defined() && log_d_.defined())
    log_p_.narrow(1, 0, log_d_.size(1)).add_(log_d_, 1.0 / request.divergence_temperature);
  if (cap_slope_.defined()) log_p_.mul_(cap_slope_);
  cap_slope_.reset();
  log_other_.reset();
  log_d_.reset();
  at::Tensor gradient = log_p_.to(pass_.model.dtype());
  log_p_.reset();
  return gradient;
}

void HeadChunk::backward(const TokenValues& d_values, at::Tensor& hidden) {
  Model& model = pass_.model;
  at::Tensor d_normed;
  const auto through = [&](const Linear& head, const at::Tensor& d) {
    linear_accumulate(head, normed_, d);
    linear_backward_input(head, d, d_normed);
  };
  if (target_head_) {
    at::Tensor d = d_values.log_probabilities;
    if (has_target_.defined()) d = d * has_target_;
    d_normed = target_head_->backward(d);
    target_head_.reset();
  } else if (pass_.request.log_probabilities) {
    through(model.head(), logits_gradient(d_values));
  }
  if (d_values.values.defined()) through(model.value_head(), d_values.values.to(model.dtype()).unsqueeze(1));
  const at::Tensor d_rows = rms_norm_backward(d_normed, saved_, model.norm());
  if (places_.defined()) {
    hidden.index_copy_(0, offset_ == 0 ? places_ : places_ - offset_, d_rows);
  } else {
    hidden.narrow(0, first_ - offset_, d_rows.size(0)).copy_(d_rows);
  }
}

}  // namespace streambp
