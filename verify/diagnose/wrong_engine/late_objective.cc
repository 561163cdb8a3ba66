#include "verify/diagnose/wrong_engine/late_objective.h"

#include "streambp/backprop/head/head.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/slopes.h"
#include "verify/diagnose/wrong_engine/wrong_batch.h"

namespace streambp::verify {

LateObjective::LateObjective(const WrongSubject& subject, const WrongSettings& settings, const Batch& batch)
    : subject_(subject), settings_(settings), batch_(batch), scored_(scored_indices(batch)) {
  options_ = settings.options;
  for (const auto& [name, value] : subject.options) options_.try_emplace(name, value);
  const auto before = make_objective(subject.objective, with_policy({}), options_);
  request_ = before->request();
  router_loss = before->router_loss;
  targets_ = before->targets();
  if (targets_.defined()) {
    Batch own = batch;
    own.targets = targets_;
    scored_ = scored_indices(own);
  }
}

at::Tensor LateObjective::loss(const TokenValues& values, int64_t begin, int64_t end) const {
  const Batch batch = with_policy(values.log_probabilities);
  const auto objective = make_objective(subject_.objective, batch, options_);
  if (settings_.normaliser.size == 0) return objective->loss(values, begin, end);
  const ScoredValues slopes = slopes_at(*objective, {to_columns(values), values.embeddings});
  const at::Tensor weights = normaliser_weights(batch, scored_, settings_.normaliser);
  at::Tensor sum = at::zeros({}, at::kDouble);
  const Columns columns = to_columns(values);
  for (size_t i = 0; i < columns.size(); ++i) {
    if (slopes.columns[i].defined()) sum = sum + (columns[i] * slopes.columns[i] * weights).sum();
  }
  return sum;
}

Batch LateObjective::with_policy(const at::Tensor& log_probabilities) const {
  Batch batch = batch_;
  if (!settings_.reference_is_policy && !settings_.old_is_policy) return batch;
  at::Tensor policy = at::zeros({batch.size()}, at::kDouble);
  if (log_probabilities.defined()) policy.index_copy_(0, scored_, log_probabilities.detach());
  if (settings_.old_is_policy) batch.token_inputs[inputs::kOldLogProbabilities] = policy;
  if (settings_.reference_is_policy) {
    batch.token_inputs[inputs::kReferenceLogProbabilities] = policy;
    batch.sequence_inputs.erase(inputs::kReferenceSums);
  }
  return batch;
}

}  // namespace streambp::verify
