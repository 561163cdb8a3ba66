#include "verify/diagnose/wrong_engine/wrong_mixture.h"

#include "streambp/error.h"

namespace streambp::verify {
namespace {

/// The experts of each token, [n, k] int64, as the library chooses them.
at::Tensor choices_of(const at::Tensor& x, const Mixture& right) {
  const at::NoGradGuard no_grad;
  RouterChoices choices(1, x.size(0), right.experts_per_token, std::ssize(right.experts), at::kCPU);
  MixtureRun run;
  run.choices = &choices;
  mixture({}, x.detach(), right, run);
  return choices.find(0, 0, x.size(0));
}

/// 1 where an expert still has room for a token, [n, k].
at::Tensor taken(const at::Tensor& choices, int64_t experts, int64_t capacity) {
  const at::Tensor place = at::one_hot(choices, experts).sum(1).cumsum(0).gather(1, choices);
  return place.le(capacity).to(at::kDouble);
}

at::Tensor scores_of(const at::Tensor& x, const Mixture& right) {
  const at::Tensor logits = linear(x, {right.router}).front();
  if (right.sqrt_softplus) return at::softplus(logits).sqrt();
  return right.sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
}

at::Tensor through(const GatedMlp& mlp, const at::Tensor& x) {
  return gated_mlp(at::zeros_like(x), x, mlp, /*graph_only=*/false);
}

}  // namespace

at::Tensor wrong_mixture(const at::Tensor& x, const Mixture& right, const WrongSettings& settings) {
  const WrongExperts wrong = settings.experts;
  if (right.expert_scale != nullptr || right.experts_of_token != nullptr)
    throw InputError("--diagnose: experts whose weights are others' as well");
  at::Tensor choices = choices_of(x, right);
  at::Tensor scores = scores_of(x, right);
  if (wrong == WrongExperts::kCorrectedWeights && right.correction != nullptr)
    scores = scores + right.correction->value.flatten();
  at::Tensor weights = scores.gather(1, choices);
  if (right.normalise)
    weights = weights / (weights.sum(-1, true) + right.added_to_sum).clamp_min(right.least_sum);
  if (wrong == WrongExperts::kFirstAlone)
    weights = weights * at::arange(weights.size(1), at::kLong).eq(0).to(weights.scalar_type());
  if (wrong == WrongExperts::kEqualWeights)
    weights = at::full_like(weights, 1.0 / static_cast<double>(weights.size(1)));
  if (wrong == WrongExperts::kOthers)
    choices = (choices + settings.expert_shift).remainder(std::ssize(right.experts));
  weights = weights * right.scale;
  if (wrong == WrongExperts::kReversedWeights) weights = weights.flip({1});
  if (wrong == WrongExperts::kLostExpert)
    weights = weights * choices.ne(settings.lost_expert).to(at::kDouble);
  if (wrong == WrongExperts::kCapacity)
    weights = weights * taken(choices, std::ssize(right.experts), settings.expert_capacity);
  at::Tensor y = at::zeros_like(x);
  for (size_t expert = 0; expert < right.experts.size(); ++expert) {
    const at::Tensor where = choices.eq(static_cast<int64_t>(expert)).nonzero();
    if (where.size(0) == 0) continue;
    const at::Tensor token = where.select(1, 0);
    const at::Tensor rows = x.index_select(0, token);
    const at::Tensor own = weights.index_select(0, token).gather(1, where.select(1, 1).unsqueeze(1));
    y = y.index_add(0, token,
                    wrong == WrongExperts::kWeightedInputs ? through(right.experts[expert], rows * own)
                                                           : through(right.experts[expert], rows) * own);
  }
  if (!right.has_shared_expert()) return y;
  const at::Tensor shared = through(right.shared_expert, x);
  return y + (right.shared_expert_gate == nullptr
                  ? shared
                  : shared * linear(x, {right.shared_expert_gate}).front().sigmoid());
}

}  // namespace streambp::verify
