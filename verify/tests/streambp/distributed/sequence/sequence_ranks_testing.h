// What the tests of ranks that divide sequences share.
#pragma once

#include <functional>
#include <vector>

#include "streambp/distributed/sequence/rows_objective.h"
#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/distributed/transport/thread_ranks.h"
#include "verify/tests/streambp/distributed/data_parallel_testing.h"

namespace streambp {

/// Thirty-seven tokens, which no number of pieces divides, with a prompt that is not scored.
Batch one_text();

/// Documents of unequal lengths: some are cut, some end where a rank's rows do, one is a single token.
Batch documents();

/// A batch of the objective's own kind, of as many sequences.
Work of_objective(const char* objective, int64_t sequences);

/// Every kind of family on one text and on documents, and other objectives and settings.
std::vector<Work> divided_works();

/// What a rank of a divided batch has for its passes.
struct RankOfRows {
  RankOfRows(Communicator& with, const Work& work, Exchange exchange = Exchange::kGather)
      : communicator(with),
        model(work.model()),
        split(model.config(), work.batch.offsets, with.size()),
        rows(with, split, exchange),
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

/// What a rank sends in one pass of ZeRO-1, by kind.
inline Traffic traffic_of_pass(Communicator& communicator, const Work& work,
                               Exchange exchange = Exchange::kGather) {
  RankOfRows rank(communicator, work, exchange);
  ReducedGradients gradients(communicator, rank.model, ZeroStage::kOptimizer);
  communicator.reset_traffic();
  rank.pass(work.settings, gradients);
  return communicator.traffic();
}

/// Rows of `owner` that `viewer` looks at in a layer with `window`.
inline int64_t rows_seen(const SequenceSplit& split, int64_t owner, int64_t viewer, int64_t window) {
  int64_t count = 0;
  for (const Piece& own : split.pieces(owner)) {
    for (int64_t row = own.begin; row < own.end; ++row) {
      bool is_seen = false;
      for (const Piece& piece : split.pieces(viewer)) {
        if (piece.sequence_begin != own.sequence_begin) continue;
        for (int64_t query = piece.begin; query < piece.end; ++query)
          is_seen = is_seen || (query > row && (window == 0 || query - row < window));
      }
      count += is_seen ? 1 : 0;
    }
  }
  return count;
}

/// Rows of `rank` that other ranks look at, once for each of them; and theirs that it looks at.
inline int64_t rows_lent(const SequenceSplit& split, int64_t rank, int64_t window) {
  int64_t count = 0;
  for (int64_t other = 0; other < split.ranks(); ++other)
    if (other != rank) count += rows_seen(split, rank, other, window);
  return count;
}
inline int64_t rows_borrowed(const SequenceSplit& split, int64_t rank, int64_t window) {
  int64_t count = 0;
  for (int64_t other = 0; other < split.ranks(); ++other)
    if (other != rank) count += rows_seen(split, other, rank, window);
  return count;
}

/// Every rank's.
inline std::vector<Result> on_ranks_of_rows(const Work& work, ZeroStage stage, int64_t ranks,
                                            Exchange exchange = Exchange::kGather) {
  std::vector<Result> results(static_cast<size_t>(ranks));
  run_on_threads(ranks, [&](Communicator& communicator) {
    RankOfRows rank(communicator, work, exchange);
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
