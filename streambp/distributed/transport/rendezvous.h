// Where the ranks of a run find each other, as those who start processes say it in their environment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace streambp {

/// How many ranks a run may have, on all its machines.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

/// A store of keys that one process serves on a port.
struct Rendezvous {
  int64_t rank = 0;
  int64_t size = 1;
  std::string host = "127.0.0.1";
  int64_t port = 0;
  bool serves = false;    // this process serves the store
  std::string run = "0";  // several in turn on one store: each its own name
  std::string listens;    // where the store is served: an address of this machine; empty: at `host`
};

/// What the environment says:
/// - torchrun's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and whether the agent serves the store
///   (TORCHELASTIC_USE_AGENT_STORE) or rank 0 does;
/// - else mpirun's OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI), or PMI_RANK and PMI_SIZE (MPICH,
/// Intel MPI, Slurm),
///   with the same MASTER_ADDR and MASTER_PORT, by default this machine and port 29500; rank 0 serves the
///   store.
/// The store has no secret: whoever serves it listens at MASTER_ADDR alone, which is this machine's loopback
/// by default, or at STREAMBP_STORE_ADDRESS where MASTER_ADDR is no address of its own (0.0.0.0: all of
/// them). Nothing without one of these ranks. Throws InputError that names the variable for one that is
/// missing or no number in its range.
std::optional<Rendezvous> rendezvous_of_environment();

}  // namespace streambp
