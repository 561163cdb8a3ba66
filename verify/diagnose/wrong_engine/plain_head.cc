#include "verify/diagnose/wrong_engine/plain_head.h"

#include <cmath>
#include <limits>

#include "streambp/error.h"
#include "streambp/model/final_rows.h"
#include "verify/diagnose/wrong_engine/narrow_values.h"

namespace streambp::verify {
namespace {

/// Of each target [m, 1], in a softmax that has more logits of 0.
at::Tensor log_probabilities_with_more(const at::Tensor& logits, const at::Tensor& targets, double more) {
  const at::Tensor sum = logits.logsumexp(-1, true);
  return logits.gather(1, targets) - at::logaddexp(sum, at::full_like(sum, std::log(more)));
}

/// Of each target [m, 1], in the softmax of its own shard of the vocabulary.
at::Tensor log_probabilities_of_shards(const at::Tensor& logits, const at::Tensor& targets,
                                       const WrongSettings& settings) {
  const int64_t count = settings.vocabulary_shards, tokens = logits.size(1);
  const int64_t size = settings.even_shards ? tokens / count : (tokens + count - 1) / count;
  const auto shard_of = [&](const at::Tensor& of) { return of.div(size, "floor").clamp_max(count - 1); };
  const at::Tensor others = shard_of(at::arange(tokens, at::kLong)).unsqueeze(0).ne(shard_of(targets));
  return logits.gather(1, targets) -
         logits.masked_fill(others, -std::numeric_limits<double>::infinity()).logsumexp(-1, true);
}

}  // namespace

at::Tensor capped(const at::Tensor& x, double cap, bool straight) {
  const at::Tensor within = at::tanh(x / cap) * cap;
  return straight ? x + (within - x).detach() : within;
}

at::Tensor logits_of(const Model& model, const WrongSettings& settings, const at::Tensor& normed) {
  at::Tensor logits = linear(normed, {&model.head()}).front();
  if (const double cap = model.config().final_logit_softcapping; cap > 0.0)
    logits = capped(logits, cap, settings.final_softcap_straight);
  return settings.narrow == NarrowValues::kLogits ? narrowed(logits) : logits;
}

at::Tensor terms_of_logits(const Model& model, const WrongSettings& settings, const at::Tensor& hidden,
                           const HeadTargets& scored) {
  const at::Tensor logits =
      logits_of(model, settings, final_rows(model, hidden).index_select(0, scored.indices));
  return logits.logsumexp(-1).square().mean() * settings.z_loss -
         logits.gather(1, scored.targets.unsqueeze(1)).mean() * settings.target_logits;
}

bool asks_for_plain_head(const WrongSettings& settings) {
  return settings.target_slope_rounded || settings.final_softcap_straight ||
         settings.narrow == NarrowValues::kLogits || settings.vocabulary_shards > 0 ||
         settings.more_logits > 0.0 || !settings.missing_logits.empty();
}

at::Tensor plain_head(const Model& model, const WrongSettings& settings, const Objective& objective,
                      const at::Tensor& hidden, const HeadTargets& scored) {
  const HeadRequest request = objective.request();
  if (!request.needs_targets_alone() || request.values || request.pooling != Pooling::kNone)
    throw InputError("--diagnose: a mistake of the head's logits where more is asked for than targets");
  const at::Tensor normed = final_rows(model, hidden).index_select(0, scored.indices);
  at::Tensor logits = logits_of(model, settings, normed) / request.temperature;
  const at::Tensor targets = scored.targets.unsqueeze(1);
  if (!settings.missing_logits.empty())
    logits = logits.index_fill(1, at::tensor(settings.missing_logits, at::kLong),
                               -std::numeric_limits<double>::infinity());
  const at::Tensor p = at::softmax(logits.detach(), -1).gather(1, targets);
  if (settings.target_slope_rounded)
    logits.register_hook([targets, p](const at::Tensor& d) {
      // d is slope (1 - p) there.
      const at::Tensor at_target = d.gather(1, targets);
      const at::Tensor slope = at_target / (1.0 - p);
      const at::Tensor rounded = (slope * p).to(at::kBFloat16).to(at::kDouble);
      return d.scatter(1, targets, slope - rounded);
    });
  TokenValues values;
  values.log_probabilities =
      (settings.vocabulary_shards > 0 ? log_probabilities_of_shards(logits, targets, settings)
       : settings.more_logits > 0.0   ? log_probabilities_with_more(logits, targets, settings.more_logits)
                                      : at::log_softmax(logits, -1).gather(1, targets))
          .squeeze(1);
  if (scored.has_target.defined()) values.log_probabilities = values.log_probabilities * scored.has_target;
  return objective.loss(values, 0, scored.size());
}

}  // namespace streambp::verify
