#include "verify/diagnose/parts/other_policies.h"

#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/scored_inputs.h"

namespace streambp::verify {

std::vector<OtherSums> other_clips(const WrongSubject& subject, const ScoredValues& values,
                                   const at::Tensor& own, const at::Tensor& policy,
                                   const at::Tensor& never_clipped) {
  const at::Tensor old = scored_input(subject.batch, inputs::kOldLogProbabilities);
  const auto level = subject.options.find("importance_sampling_level");
  const bool by_token = level == subject.options.end() || level->second == "token";
  if (!old.defined() || !policy.defined() || !never_clipped.defined() || !by_token) return {};
  const Options options = complete_options(objective_kind("grpo"), subject.options, subject.batch);
  const at::Tensor ratio = (values.columns[0] - old).exp();
  const at::Tensor outside = ratio.lt(1.0 - options.number("epsilon_low", 0.0, kInfinity))
                                 .logical_or(ratio.gt(1.0 + options.number("epsilon_high", 0.0, kInfinity)));
  const at::Tensor besides = own - policy;
  const at::Tensor kept = outside.logical_and(policy.ne(0.0));  // by the sign of the advantage
  return {{"clipped-whatever-the-sign",
           "ratios outside of the clip range have no gradient whatever the advantage's sign: the smaller of "
           "both terms is not "
           "taken",
           never_clipped.masked_fill(outside, 0.0) + besides},
          {"clipped-on-the-other-side",
           "ratios are clipped on the other side: of the clipped term and the other one the larger is taken, "
           "not the smaller",
           never_clipped.masked_fill(kept, 0.0) + besides}};
}

std::vector<OtherSums> other_divergences(const WrongSubject& subject, const ScoredValues& values,
                                         const at::Tensor& divergence) {
  const at::Tensor reference = scored_input(subject.batch, inputs::kReferenceLogProbabilities);
  const auto estimator = subject.options.find("kl_estimator");
  const bool by_k3 = estimator == subject.options.end() || estimator->second == "k3";
  if (!reference.defined() || !divergence.defined() || !by_k3) return {};
  // k3 has the slope 1 - exp(reference - policy), the reverse exp(policy - reference) - 1.
  const at::Tensor ahead = values.columns[0] - reference, of_k3 = 1.0 - (-ahead).exp();
  if (of_k3.eq(0.0).any().item<bool>()) return {};
  const at::Tensor of_one = divergence / of_k3;
  return {
      {"kl-reversed", "the KL term is that of the other direction (policy and reference are exchanged in k3)",
       of_one * (ahead.exp() - 1.0)},
      {"kl-k1", "the KL term is the difference of log-probabilities (k1)", of_one},
      {"kl-k2", "the KL term is half the square of the difference of log-probabilities (k2)", of_one * ahead},
      {"kl-absolute", "the KL term is the size of the difference of log-probabilities",
       of_one * ahead.sign()},
      {"kl-of-ratio",
       "the KL term is k3 without the term that makes it positive, exp(reference - policy) - 1",
       of_one * -(-ahead).exp()}};
}

}  // namespace streambp::verify
