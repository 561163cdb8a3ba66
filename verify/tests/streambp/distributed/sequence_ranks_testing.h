// What the tests of ranks that divide sequences share.
#pragma once

#include <functional>

#include "streambp/distributed/rows_objective.h"
#include "streambp/distributed/rows_of_rank.h"
#include "streambp/distributed/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {

/// What a rank of a divided batch has for its passes.
struct RankOfRows {
  RankOfRows(Communicator& with, const Work& work)
      : communicator(with),
        model(work.model()),
        split(model.config(), work.batch.offsets, with.size()),
        rows(with, split),
        batch(split.batch_of(work.batch, with.rank())),
        objective(objective_of_rows(with, work.objective, work.batch, split, work.options)) {}

  Outcome pass(const Settings& settings, ReducedGradients& gradients, Model* teacher = nullptr) {
    return backpropagate_on_ranks(communicator, model, batch, *objective, settings, gradients, teacher,
                                  &rows);
  }

  Communicator& communicator;
  Model model;
  SequenceSplit split;
  RowsOfRank rows;
  Batch batch;
  std::unique_ptr<Objective> objective;
};

/// Every rank's.
inline std::vector<Result> on_ranks_of_rows(const Work& work, ZeroStage stage, int64_t ranks) {
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](Communicator& communicator) {
    RankOfRows rank(communicator, work);
    ReducedGradients gradients(communicator, rank.model, stage);
    const auto optimizer = adamw();
    gradients.prepare(*optimizer);
    Result& result = results[static_cast<size_t>(communicator.rank())];
    result.loss = rank.pass(work.settings, gradients).loss;
    for (const auto& [name, gradient] : gradients.gathered()) result.gradients[name] = gradient.clone();
    gradients.step(*optimizer);
    result.weights = weights_of(rank.model);
  });
  return results;
}

}  // namespace streambp
