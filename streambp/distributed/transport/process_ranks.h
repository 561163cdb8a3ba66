// Ranks as processes, on one machine or several: messages over Gloo, which libtorch has in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "streambp/distributed/transport/communicator.h"
#include "streambp/distributed/transport/rendezvous.h"
#include "streambp/distributed/transport/thread_ranks.h"

namespace streambp {

/// A store for ranks to meet at, on a free port of this machine's loopback, for as long as it lives: of the
/// process that starts them.
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

/// How tensors on a GPU get to another rank's.
enum class BetweenGpus { kHost, kNccl };

/// Connects with all other ranks. They give up on a rank after `patience`: CommunicationError then names the
/// rank at the end of the chain of those that wait for each other, or the address where nobody answers.
/// Throws InputError where the store is to be served at an address or port that can't be had. Tensors on a
/// GPU go through the host, or over NCCL where `gpus` says kNccl: each rank then has a GPU of its own, which
/// has been opened.
std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous,
                                      std::chrono::milliseconds patience = kPatience,
                                      BetweenGpus gpus = BetweenGpus::kHost);

}  // namespace streambp
