// One batch on several ranks, each with some of its sequences: losses and gradients of the whole.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/backprop/method.h"
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

/// backpropagate() on every rank, with gradients handed to `gradients`, which sums them over ranks, as soon
/// as they are final where the method of `settings` can, at the end of the pass elsewhere; Outcome::loss is
/// the whole batch's, the same bits on every rank. Throws InputError as backpropagate does, and for gradients
/// that end with their use (ZeRO-2) with a method that can't hand them over.
Outcome backpropagate_on_ranks(Communicator& communicator, Model& model, const Batch& batch,
                               const Objective& objective, Settings settings, GradientConsumer& gradients,
                               Model* teacher = nullptr);

}  // namespace streambp
