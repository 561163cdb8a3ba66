// Ranks as processes, on one machine or several: messages over Gloo, which libtorch has in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "streambp/distributed/communicator.h"
#include "streambp/distributed/thread_ranks.h"

namespace streambp {

/// Where the ranks of a run find each other: a store of keys that one process serves on a port.
struct Rendezvous {
  int64_t rank = 0;
  int64_t size = 1;
  std::string host = "127.0.0.1";
  int64_t port = 0;
  bool serves = false;    // this process serves the store
  std::string run = "0";  // several in turn on one store: each its own name
};

/// What torchrun's environment variables say: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and whether the
/// agent serves the store (TORCHELASTIC_USE_AGENT_STORE) or rank 0 does. Nothing without RANK. Throws
/// InputError that names the variable for one that is missing or no number in its range.
std::optional<Rendezvous> rendezvous_of_environment();

/// A store for ranks to meet at, on a free port of this machine, for as long as it lives: of the process that
/// starts them.
class StoreServer {
 public:
  StoreServer();
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  int64_t port() const;

 private:
  struct Store;
  std::unique_ptr<Store> store_;
};

/// Connects with all other ranks. They give up on a rank after `patience`: CommunicationError then names the
/// rank at the end of the chain of those that wait for each other. Tensors on a GPU go through the host.
std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous,
                                      std::chrono::milliseconds patience = kPatience);

}  // namespace streambp
