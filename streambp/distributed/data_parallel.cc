#include "streambp/distributed/data_parallel.h"

#include <algorithm>

#include "streambp/backprop/embeddings.h"
#include "streambp/distributed/whole_objective.h"
#include "streambp/error.h"

namespace streambp {
namespace {

/// The sum over ranks of numbers that all of them count, in the order of ranks.
at::Tensor sum_of(const at::Tensor& of_ranks) {
  at::Tensor sum = of_ranks[0].clone();
  for (int64_t rank = 1; rank < of_ranks.size(0); ++rank) sum.add_(of_ranks[rank]);
  return sum;
}

/// Of each rank, in the order of ranks.
std::vector<Counts> counts_of_ranks(Communicator& communicator, const Counts& own) {
  const at::Tensor all = communicator.all_gather(
      at::tensor({own.scored, own.valued, own.sequences, own.chosen, own.chosen_next}, at::kLong));
  std::vector<Counts> counts;
  for (int64_t rank = 0; rank < communicator.size(); ++rank) {
    const auto of = [&](int64_t i) { return all[rank][i].item<int64_t>(); };
    counts.push_back(
        {.scored = of(0), .valued = of(1), .sequences = of(2), .chosen = of(3), .chosen_next = of(4)});
  }
  return counts;
}

Counts sum_of(const std::vector<Counts>& of_ranks) {
  Counts sum;
  for (const Counts& counts : of_ranks) {
    sum.scored += counts.scored;
    sum.valued += counts.valued;
    sum.sequences += counts.sequences;
    sum.chosen += counts.chosen;
    sum.chosen_next += counts.chosen_next;
  }
  return sum;
}

/// Whether it is so on any rank.
bool on_any_rank(Communicator& communicator, bool here) {
  return communicator.all_gather(at::full({1}, here ? 1 : 0, at::kLong)).any().item<bool>();
}

/// The longest of all ranks' batches, whose tokens decide on frequencies that depend on the length.
int64_t rope_length_of_all(Communicator& communicator, const Batch& batch) {
  const int64_t own = rope_length(batch);
  return communicator.all_gather(at::full({1}, own, at::kLong)).max().item<int64_t>();
}

/// What the ranks' batches are as one.
struct Whole {
  std::vector<Counts> counts;  // of each rank
  bool compares = false;       // its rows with one another
};

/// Gives `batch` the whole's length. All ranks call it.
Whole whole_of(Communicator& communicator, const std::string& name, Batch& batch,
               const std::map<std::string, std::string>& given) {
  if (batch.size() == 0) throw InputError("{}: a rank without a token, expected some on every rank", name);
  batch.rope_length = rope_length_of_all(communicator, batch);
  Whole whole{.counts = counts_of_ranks(communicator, count(batch))};
  const ObjectiveKind& kind = objective_kind(name);
  whole.compares = on_any_rank(
      communicator, kind.compares_rows && kind.compares_rows(batch, complete_options(kind, given, batch)));
  return whole;
}

}  // namespace

std::unique_ptr<Objective> objective_of_ranks(Communicator& communicator, const Model& model,
                                              const std::string& name, Batch& batch,
                                              const std::map<std::string, std::string>& given) {
  const auto [counts, compares] = whole_of(communicator, name, batch, given);
  std::unique_ptr<Objective> objective = compares ? whole_objective(communicator, name, batch, given)
                                                  : make_objective(name, batch, given, sum_of(counts));
  const bool balances = objective->router_loss.of(model.config().mixture) != 0.0;
  for (size_t rank = 0; rank < counts.size() && (compares || balances); ++rank) {
    if (counts[rank].scored > 0 || objective->request().pooling != Pooling::kNone) continue;
    throw InputError("{}: rank {} has no scored token, expected some on every rank where {}", name, rank,
                     compares ? "the loss compares rows" : "the load of experts is balanced");
  }
  balance_over_ranks(communicator, *objective);
  return objective;
}

std::vector<PartOfRank> parts_of_rank(Communicator& communicator, const Model& model, const std::string& name,
                                      Batch& batch, int64_t parts,
                                      const std::map<std::string, std::string>& given) {
  std::vector<PartOfRank> all;
  if (parts == 1) {
    auto objective = objective_of_ranks(communicator, model, name, batch, given);
    all.push_back({batch, std::move(objective)});
    return all;
  }
  const auto [counts, compares] = whole_of(communicator, name, batch, given);
  if (compares)
    throw InputError("{}: compares the rows of a batch with one another, expected no micro-batches", name);
  const bool pairs = has_pairs(objective_kind(name).layout);
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const int64_t units = pairs ? counts[rank].sequences / 2 : counts[rank].sequences;
    if (units < parts)
      throw InputError("{} micro-batches: rank {} has {} {}, expected at least one for each on every rank",
                       parts, rank, units, pairs ? "pairs" : "sequences");
  }
  std::vector<Batch> batches = micro_batches(batch, parts, pairs);
  const bool lacks_tokens =
      std::any_of(batches.begin(), batches.end(), [](const Batch& part) { return part.size() == 0; });
  if (on_any_rank(communicator, lacks_tokens))
    throw InputError("{} micro-batches: one without a token, expected some in every one", parts);
  for (Batch& part : batches) {
    auto objective = make_objective(name, part, given, sum_of(counts));
    require_no_balance(model, *objective);
    all.push_back({std::move(part), std::move(objective)});
  }
  return all;
}

Outcome backpropagate_parts(Communicator& communicator, Model& model, const std::vector<PartOfRank>& parts,
                            const Settings& settings, ReducedGradients& gradients, Model* teacher) {
  Outcome outcome;
  double loss = 0.0;
  for (size_t i = 0; i < parts.size(); ++i) {
    gradients.accumulate(i + 1 < parts.size());
    outcome = backpropagate_on_ranks(communicator, model, parts[i].batch, *parts[i].objective, settings,
                                     gradients, teacher);
    loss += outcome.loss;
  }
  outcome.loss = loss;
  if (parts.size() > 1) outcome.log_probabilities = outcome.values = at::Tensor();  // of the last part alone
  return outcome;
}

void balance_over_ranks(Communicator& communicator, Objective& objective) {
  objective.router_loss.sum_over_ranks = [&communicator](at::Tensor& numbers) {
    communicator.all_reduce(Concatenation(numbers));
  };
  objective.router_loss.reports = communicator.rank() == 0;
}

Outcome backpropagate_on_ranks(Communicator& communicator, Model& model, const Batch& batch,
                               const Objective& objective, Settings settings, GradientConsumer& gradients,
                               Model* teacher, StreamPart* part) {
  const bool hands_over = method_kind(settings.method).fuses_optimizer;
  if (hands_over || gradients.frees()) settings.consumer = &gradients;
  Outcome outcome = part == nullptr ? backpropagate(model, batch, objective, settings, teacher)
                                    : backpropagate_part(model, batch, objective, settings, *part, teacher);
  if (settings.consumer == nullptr) {
    const at::NoGradGuard no_grad;
    hand_over_all(model, gradients);
    gradients.finish();
  }
  const at::Tensor losses = communicator.all_gather(at::full({1}, outcome.loss, at::kDouble));
  outcome.loss = sum_of(losses)[0].item<double>();
  return outcome;
}

}  // namespace streambp
