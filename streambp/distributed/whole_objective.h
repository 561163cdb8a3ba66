// Objectives that compare rows with one another, over the rows of all ranks.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/distributed/transport/communicator.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The objective `name` of all ranks' batches as one, on this rank's `batch`: its loss gathers what the head
/// says of the other ranks' scored tokens (float64, a few numbers a token), so that gradients are the
/// whole's; the first rank has the loss, the others have 0. Of pairs and blocks of texts, each rank has as
/// many in every block. All ranks call it, and the loss once a pass. Throws InputError as make_objective does
/// on the whole, and where ranks have inputs of other names.
std::unique_ptr<Objective> whole_objective(Communicator& communicator, const std::string& name,
                                           const Batch& batch,
                                           const std::map<std::string, std::string>& given);

}  // namespace streambp
