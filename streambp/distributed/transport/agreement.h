// Whether all ranks are at the same work, asked before it begins.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "streambp/distributed/transport/communicator.h"

namespace streambp {

/// The text of each rank, in the order of ranks.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

/// Throws InputError on every rank unless `facts` (the commit, the flags, the shapes of the weights, ... by
/// what they are called) are the same on all: it names the fact, the first rank that differs from rank 0, and
/// what both have.
void require_agreement(Communicator& communicator, const std::map<std::string, std::string>& facts);

}  // namespace streambp
