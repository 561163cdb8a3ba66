// Ranks of a process group that Python's torch.distributed has opened.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "streambp/distributed/transport/communicator.h"

namespace streambp::python {

/// This process's rank in torch.distributed's group `name`, whose messages go over the group's backend for
/// the CPU. Throws InputError for a group that is not there or has no such backend.
std::unique_ptr<Communicator> ranks_of_group(const std::string& name);

/// Before anything else is said. `problem`: why this rank can't go on, or empty. Throws InputError on every
/// rank where one has a problem, or where `facts` differ (require_agreement). All ranks call it once a pass.
void begin_together(Communicator& communicator, const std::string& problem,
                    const std::map<std::string, std::string>& facts);

}  // namespace streambp::python
