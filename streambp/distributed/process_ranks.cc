// All of c10d that the project includes: its headers take half a minute to compile.
#include "streambp/distributed/process_ranks.h"

#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "streambp/distributed/backend_rank.h"
#include "streambp/distributed/nccl_backend.h"
#include "streambp/error.h"

namespace streambp {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

/// What ranks that have stopped leave for the others to read: whom they were waiting for.
class Obituaries {
 public:
  Obituaries(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds pause)
      : store_(std::move(store)), pause_(pause) {}

  /// Leaves word that `rank` has waited for `other`, and follows that chain to a rank that has left none.
  int64_t culprit(int64_t rank, int64_t other, int64_t ranks) {
    try {
      store_->set(key(rank), bytes_of(std::to_string(other)));
      std::this_thread::sleep_for(pause_);  // others find out about the same time
      int64_t last = other;
      for (int64_t step = 0; step < ranks && last != rank && store_->check({key(last)}); ++step) {
        const std::vector<uint8_t> next = store_->get(key(last));
        last = std::stoll(std::string(next.begin(), next.end()));
      }
      return last == rank ? other : last;
    } catch (const std::exception&) {
      return other;  // the store has gone with its process
    }
  }

 private:
  static std::string key(int64_t rank) { return fmt::format("waited/{}", rank); }

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds pause_;
};

c10::intrusive_ptr<c10d::ProcessGroupGloo> open_gloo(const Rendezvous& at,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     std::chrono::milliseconds patience) {
  const auto options = c10d::ProcessGroupGloo::Options::create(patience);
  const bool is_local = at.host == "127.0.0.1" || at.host == "localhost";
  options->devices.push_back(is_local ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                      : c10d::ProcessGroupGloo::createDefaultDevice());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(at.rank),
                                                     static_cast<int>(at.size), options);
}

class GlooRank final : public BackendRank {
 public:
  GlooRank(const Rendezvous& at, const c10::intrusive_ptr<c10d::Store>& store,
           std::chrono::milliseconds patience, BetweenGpus gpus)
      : BackendRank(open_gloo(at, store, patience), patience, /*first_tag=*/0,
                    gpus == BetweenGpus::kNccl
                        ? open_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store),
                                    static_cast<int>(at.rank), static_cast<int>(at.size), patience)
                        : nullptr),
        obituaries_(store, std::min<std::chrono::milliseconds>(patience / 10, std::chrono::seconds(1))) {}

 protected:
  int64_t culprit(int64_t other) override { return obituaries_.culprit(rank(), other, size()); }

 private:
  Obituaries obituaries_;
};

c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& at, std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(at.port);
  options.isServer = at.serves;
  options.waitWorkers = false;
  options.timeout = patience;
  return c10::make_intrusive<c10d::TCPStore>(at.host, options);
}

}  // namespace

struct StoreServer::Store {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer() : store_(std::make_unique<Store>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  store_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

StoreServer::~StoreServer() = default;

int64_t StoreServer::port() const {
  return store_->store->getPort();
}

std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous, std::chrono::milliseconds patience,
                                      BetweenGpus gpus) {
  try {
    const auto store = c10::make_intrusive<c10d::PrefixStore>("streambp/" + rendezvous.run,
                                                              open_store(rendezvous, patience));
    return std::make_unique<GlooRank>(rendezvous, store, patience, gpus);
  } catch (const c10::Error& error) {
    throw CommunicationError(fmt::format("rank {} finds no other rank at {}:{} ({})", rendezvous.rank,
                                         rendezvous.host, rendezvous.port, error.what_without_backtrace()));
  }
}

}  // namespace streambp
