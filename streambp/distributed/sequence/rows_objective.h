// An objective of a batch whose sequences several ranks divide.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/distributed/sequence/sequence_split.h"
#include "streambp/distributed/transport/communicator.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The objective `name` on `whole`, for the pass of this rank over its rows (SequenceSplit::batch_of): losses
/// and gradients of all ranks sum to the whole's. It is made from the whole batch, so that every normaliser
/// is the whole's. One that is no sum over tokens (DPO, KTO, ...) gets the values of all ranks' scored tokens
/// in its pass, 8 bytes for each that it asks for, and gives this rank's gradient. Throws InputError as
/// make_objective does, and for an objective of embeddings. Communicator and split outlive it.
std::unique_ptr<Objective> objective_of_rows(Communicator& communicator, const std::string& name,
                                             const Batch& whole, const SequenceSplit& split,
                                             const std::map<std::string, std::string>& given = {});

}  // namespace streambp
