#include "streambp/distributed/data_parallel.h"

#include <algorithm>

#include "streambp/error.h"

namespace streambp {
namespace {

/// The sum over ranks of numbers that all of them count, in the order of ranks.
at::Tensor sum_of(const at::Tensor& of_ranks) {
  at::Tensor sum = of_ranks[0].clone();
  for (int64_t rank = 1; rank < of_ranks.size(0); ++rank) sum.add_(of_ranks[rank]);
  return sum;
}

Counts counts_of_all(Communicator& communicator, const Counts& own) {
  const at::Tensor numbers =
      at::tensor({own.scored, own.valued, own.sequences, own.chosen, own.chosen_next}, at::kLong);
  const at::Tensor sums = sum_of(communicator.all_gather(numbers));
  const auto of = [&](int64_t i) { return sums[i].item<int64_t>(); };
  return {.scored = of(0), .valued = of(1), .sequences = of(2), .chosen = of(3), .chosen_next = of(4)};
}

/// The longest of all ranks' batches, whose tokens decide on frequencies that depend on the length.
int64_t rope_length_of_all(Communicator& communicator, const Batch& batch) {
  const int64_t own = rope_length(batch);
  return communicator.all_gather(at::full({1}, own, at::kLong)).max().item<int64_t>();
}

}  // namespace

std::unique_ptr<Objective> objective_of_ranks(Communicator& communicator, const Model& model,
                                              const std::string& name, Batch& batch,
                                              const std::map<std::string, std::string>& given) {
  if (batch.size() == 0) throw InputError("{}: a rank without a token, expected some on every rank", name);
  batch.rope_length = rope_length_of_all(communicator, batch);
  const Counts whole = counts_of_all(communicator, count(batch));
  std::unique_ptr<Objective> objective = make_objective(name, batch, given, whole);
  require_sum_over_ranks(communicator, model, *objective);
  return objective;
}

void require_sum_over_ranks(const Communicator& communicator, const Model& model,
                            const Objective& objective) {
  if (communicator.size() == 1 || objective.router_loss.of(model.config().mixture) == 0.0) return;
  throw InputError(
      "{}: the load-balancing loss is of the whole batch, expected router_aux_loss_coef 0 on {} ranks",
      objective.name(), communicator.size());
}

Outcome backpropagate_on_ranks(Communicator& communicator, Model& model, const Batch& batch,
                               const Objective& objective, Settings settings, ReducedGradients& gradients,
                               Model* teacher, StreamPart* part) {
  const bool hands_over = method_kind(settings.method).fuses_optimizer;
  if (hands_over || gradients.frees()) settings.consumer = &gradients;
  Outcome outcome = part == nullptr ? backpropagate(model, batch, objective, settings, teacher)
                                    : backpropagate_part(model, batch, objective, settings, *part, teacher);
  if (settings.consumer == nullptr) {
    const at::NoGradGuard no_grad;
    hand_over_all(model, gradients);
  }
  const at::Tensor losses = communicator.all_gather(at::full({1}, outcome.loss, at::kDouble));
  outcome.loss = sum_of(losses)[0].item<double>();
  return outcome;
}

}  // namespace streambp
