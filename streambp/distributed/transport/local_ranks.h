// A program started several times on this machine, as ranks that find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace streambp {

/// How many processes of one machine: each is connected with every other.
inline constexpr int64_t kMostLocalRanks = 1024;

/// How a run of several processes ended.
struct RanksEnd {
  int status =
      0;  // rank 0's where all ended with 0; otherwise of the first that did not, 128 + n of signal n
  int64_t rank = 0;     // whose status it is
  std::string message;  // what that rank wrote to stderr; of a killed one, the signal
};

/// Runs `command` (a program's file, then its arguments) as `ranks` processes with torchrun's environment
/// variables (rendezvous_of_environment), whose store this process serves. Rank 0 writes to this process's
/// stdout, the others' is dropped; what all write to stderr is kept for RanksEnd. After the first that fails
/// the others have `grace` to end by themselves, then they are killed; none outlives this process. Throws
/// InputError for a number of ranks below 1 or above kMostLocalRanks, for a program that can't be started,
/// and where the system gives too few processes or descriptors.
RanksEnd run_local_ranks(int64_t ranks, const std::vector<std::string>& command,
                         std::chrono::milliseconds grace = std::chrono::seconds(3));

}  // namespace streambp
