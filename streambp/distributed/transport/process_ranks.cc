// All of c10d that the project includes: its headers take half a minute to compile.
#include "streambp/distributed/transport/process_ranks.h"

#include <cstring>
#include <fmt/ranges.h>
#include <future>
#include <netdb.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "streambp/distributed/transport/backend_rank.h"
#include "streambp/distributed/transport/nccl_backend.h"
#include "streambp/error.h"

namespace streambp {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

/// How long a rank that has failed waits for the others to notice.
std::chrono::milliseconds pause_of(std::chrono::milliseconds patience) {
  return std::min<std::chrono::milliseconds>(patience / 10, std::chrono::seconds(1));
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
        obituaries_(store, pause_of(patience)) {}

 protected:
  int64_t culprit(int64_t other) override { return obituaries_.culprit(rank(), other, size()); }

 private:
  Obituaries obituaries_;
};

std::string joined_key(int64_t rank) {
  return fmt::format("joined/{}", rank);
}

/// Returns when every rank has all its connections: none leaves while another still connects.
void wait_for_all(c10d::Store& store, const Rendezvous& at, std::chrono::milliseconds patience) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < at.size; ++rank) keys.push_back(joined_key(rank));
  store.set(joined_key(at.rank), bytes_of("1"));
  store.wait(keys, patience);
}

/// Whom a rank that could not connect has missed: those that have neither joined nor found out the same.
std::string missed(c10d::Store* store, const Rendezvous& at, std::chrono::milliseconds pause) {
  std::vector<int64_t> ranks;
  try {
    const auto failed_key = [](int64_t rank) { return fmt::format("failed/{}", rank); };
    if (store != nullptr) store->set(failed_key(at.rank), bytes_of("1"));
    std::this_thread::sleep_for(pause);
    for (int64_t rank = 0; store != nullptr && rank < at.size; ++rank)
      if (!store->check({joined_key(rank)}) && !store->check({failed_key(rank)})) ranks.push_back(rank);
  } catch (const std::exception&) {  // the store has gone with its process
  }
  if (ranks.empty()) return "no other rank";
  return fmt::format("no rank {}", fmt::join(ranks, ", "));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// A socket that is bound to one of a host's addresses and listens; below 0, with errno: none can be.
int try_to_listen(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (socket < 0) return socket;
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0)
    return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

/// Listens at `host` alone: c10d by itself would at every address of the machine. Port 0: a free one.
int listen_at(const std::string& host, int64_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  const Addresses addresses(found, freeaddrinfo);
  std::string why = problem == 0 ? "" : gai_strerror(problem);
  for (const addrinfo* address = found; problem == 0 && address != nullptr; address = address->ai_next) {
    const int socket = try_to_listen(*address);
    if (socket >= 0) return socket;
    why = std::strerror(errno);
  }
  throw InputError(
      "can't listen at {}:{}: {}; expected a free port, and an address of this machine in MASTER_ADDR or "
      "STREAMBP_STORE_ADDRESS",
      host, port, why);
}

uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  const uint16_t port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                      : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

/// With a server where `listens` is an address of this machine, else for a client.
c10d::TCPStoreOptions store_options(const std::string& listens, int64_t port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  if (listens.empty()) return options;
  options.isServer = true;
  options.masterListenFd = listen_at(listens, port);
  options.port = port_of(*options.masterListenFd);
  return options;
}

/// A client waits without end for a server that accepts its connection and says nothing: a thread of its own
/// does, which is left to it.
c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& at, std::chrono::milliseconds patience) {
  const std::string listens = at.listens.empty() ? at.host : at.listens;
  c10d::TCPStoreOptions options = store_options(at.serves ? listens : "", at.port);
  options.timeout = patience;
  std::packaged_task<c10::intrusive_ptr<c10d::Store>()> opening([host = at.host, options] {
    return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::TCPStore>(host, options));
  });
  std::future<c10::intrusive_ptr<c10d::Store>> store = opening.get_future();
  std::thread(std::move(opening)).detach();
  if (store.wait_for(patience + pause_of(patience)) == std::future_status::ready) return store.get();
  throw CommunicationError(fmt::format(
      "rank {} finds nobody that answers at {}:{}, where its connection is accepted: expected the "
      "store of rank 0, or of torchrun's agent",
      at.rank, at.host, at.port));
}

}  // namespace

struct StoreServer::Store {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer() : store_(std::make_unique<Store>()) {
  constexpr const char* kLoopback = "127.0.0.1";
  store_->store =
      c10::make_intrusive<c10d::TCPStore>(kLoopback, store_options(/*listens=*/kLoopback, /*port=*/0));
}

StoreServer::~StoreServer() = default;

int64_t StoreServer::port() const {
  return store_->store->getPort();
}

std::unique_ptr<Communicator> connect(const Rendezvous& rendezvous, std::chrono::milliseconds patience,
                                      BetweenGpus gpus) {
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::PrefixStore>("streambp/" + rendezvous.run,
                                                   open_store(rendezvous, patience));
    auto communicator = std::make_unique<GlooRank>(rendezvous, store, patience, gpus);
    wait_for_all(*store, rendezvous, patience);
    return communicator;
  } catch (const c10::Error& error) {
    throw CommunicationError(fmt::format("rank {} finds {} at {}:{} ({})", rendezvous.rank,
                                         missed(store.get(), rendezvous, pause_of(patience)), rendezvous.host,
                                         rendezvous.port, error.what_without_backtrace()));
  }
}

}  // namespace streambp
