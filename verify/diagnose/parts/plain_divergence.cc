#include "verify/diagnose/parts/plain_divergence.h"

#include "streambp/objective/terms.h"

namespace streambp::verify {

std::optional<at::Tensor> with_plain_divergence(const WrongSubject& subject, const FitGauge& gauge,
                                                const Linearised& linear) {
  if (subject.objective != "grpo") return std::nullopt;
  const Options options = complete_options(objective_kind("grpo"), subject.options, subject.batch);
  if (!(options.number("beta", 0.0, kInfinity) > 0.0) ||
      make_objective("grpo", subject.batch, subject.options)->request().temperature == 1.0)
    return std::nullopt;
  const auto with = [&](bool plain, bool divergence) {
    auto changed = subject.options;
    if (plain) changed["temperature"] = "1";
    if (!divergence) changed["beta"] = "0";
    return make_objective("grpo", subject.batch, changed);
  };
  const auto whole = with(true, true);
  const Linearised at_one(subject.model, subject.batch, *whole, subject.teacher);
  const ScoredValues term = sum_of(at_one.slopes(), slopes_at(*with(true, false), at_one.values()), -1.0);
  const ScoredValues rest = slopes_at(*with(false, false), linear.values());
  return gauge.vector_of(linear.gradients_of(rest)) + gauge.vector_of(at_one.gradients_of(term));
}

ScoredValues slopes_of_unit_advantages(const WrongSubject& subject, const Linearised& linear) {
  Batch batch = subject.batch;
  at::Tensor& advantages = batch.token_inputs.at(inputs::kAdvantages);
  advantages = at::where(advantages.eq(0.0), at::ones_like(advantages), advantages);
  const auto objective = make_objective(subject.objective, batch, subject.options);
  return sum_of(slopes_at(*objective, linear.values()), linear.slopes(), -1.0);
}

}  // namespace streambp::verify
