// One batch on several ranks, each with some of its sequences: losses and gradients of the whole.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/backprop/stream_part.h"
#include "streambp/distributed/reduced_gradients.h"

namespace streambp {

/// The objective `name` on `batch`, this rank's sequences of a batch that all ranks have together, with the
/// normalisers of the whole: losses and gradients of all ranks sum to those of the whole batch on one rank,
/// without a factor. Where the whole's length decides (Batch::rope_length), `batch` gets it. All ranks call
/// it. Throws InputError as make_objective does, for an objective that compares sequences of several ranks
/// (KL estimates, sorted pairs, embeddings), for a rank without a token, and for a load-balancing loss of a
/// mixture, which is not a sum over ranks.
std::unique_ptr<Objective> objective_of_ranks(Communicator& communicator, const Model& model,
                                              const std::string& name, Batch& batch,
                                              const std::map<std::string, std::string>& given = {});

/// Throws InputError for an objective with a load-balancing loss, on more than one rank.
void require_sum_over_ranks(const Communicator& communicator, const Model& model, const Objective& objective);

/// backpropagate() on every rank, with gradients handed to `gradients` as soon as they are final where the
/// method of `settings` can, at the end of the pass elsewhere; Outcome::loss is the whole batch's, the same
/// bits on every rank. Where ranks divide sequences, `batch` is this rank's rows and `part` says where the
/// others are (RowsOfRank). Throws InputError as backpropagate and backpropagate_part do, and for ZeRO-2 with
/// a method that can't hand gradients over.
Outcome backpropagate_on_ranks(Communicator& communicator, Model& model, const Batch& batch,
                               const Objective& objective, Settings settings, ReducedGradients& gradients,
                               Model* teacher = nullptr, StreamPart* part = nullptr);

}  // namespace streambp
