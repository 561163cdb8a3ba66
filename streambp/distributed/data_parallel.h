// One batch on several ranks, each with some of its sequences: losses and gradients of the whole.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "streambp/backprop/streamed/stream_part.h"
#include "streambp/distributed/reduced_gradients.h"

namespace streambp {

/// The objective `name` on `batch`, this rank's sequences of a batch that all ranks have together, with the
/// normalisers of the whole: losses and gradients of all ranks sum to those of the whole batch on one rank,
/// without a factor. Where the whole's length decides (Batch::rope_length), `batch` gets it. All ranks call
/// it. What compares rows with one another (ObjectiveKind::compares_rows) or balances a mixture's load then
/// asks the other ranks during the pass. Throws InputError as make_objective does, for a rank without a
/// token, and with such an objective or loss for one without a scored token. The communicator outlives the
/// objective.
std::unique_ptr<Objective> objective_of_ranks(Communicator& communicator, const Model& model,
                                              const std::string& name, Batch& batch,
                                              const std::map<std::string, std::string>& given = {});

/// Has the load of a mixture's experts counted over all ranks' tokens in the objective's passes, and its loss
/// in the first rank's alone. The communicator outlives the objective.
void balance_over_ranks(Communicator& communicator, Objective& objective);

/// backpropagate() on every rank, with gradients handed to `gradients`, which sums them over ranks, as soon
/// as they are final where the method of `settings` can, at the end of the pass elsewhere; Outcome::loss is
/// the whole batch's, the same bits on every rank. Where ranks divide sequences, `batch` is this rank's rows
/// and `part` says where the others are (RowsOfRank). Throws InputError as backpropagate and
/// backpropagate_part do, and for gradients that end with their use (ZeRO-2) with a method that can't hand
/// them over.
Outcome backpropagate_on_ranks(Communicator& communicator, Model& model, const Batch& batch,
                               const Objective& objective, Settings settings, GradientConsumer& gradients,
                               Model* teacher = nullptr, StreamPart* part = nullptr);

/// A micro-batch of a rank's batch.
struct PartOfRank {
  Batch batch;
  std::unique_ptr<Objective> objective;  // with the normalisers of all ranks' batches
};

/// `batch` of this rank cut into `parts` micro-batches (micro_batches), so that losses and gradients of all
/// parts of all ranks sum to those of the whole batch. Ranks may have batches of unequal sizes; all have as
/// many parts. Throws InputError on every rank where one has fewer sequences, or pairs, than parts, and as
/// objective_of_ranks does; with more than one part also for what is no sum over parts: losses that compare
/// rows with one another, and the load of a mixture's experts.
std::vector<PartOfRank> parts_of_rank(Communicator& communicator, const Model& model, const std::string& name,
                                      Batch& batch, int64_t parts,
                                      const std::map<std::string, std::string>& given = {});

/// backpropagate_on_ranks() for each part. Gradients stay with the rank until the last one, after whose last
/// chunk a layer's are summed over ranks; where they are freed (ZeRO-2), each part's are. The outcome is that
/// of the last part, the loss of all.
Outcome backpropagate_parts(Communicator& communicator, Model& model, const std::vector<PartOfRank>& parts,
                            const Settings& settings, ReducedGradients& gradients, Model* teacher = nullptr);

}  // namespace streambp
