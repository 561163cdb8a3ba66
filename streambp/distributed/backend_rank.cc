#include "streambp/distributed/backend_rank.h"

#include <string>
#include <utility>
#include <vector>

#include "streambp/error.h"

namespace streambp {

BackendRank::BackendRank(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds patience,
                         int first_tag)
    : Communicator(backend->getRank(), backend->getSize()),
      backend_(std::move(backend)),
      patience_(patience),
      first_tag_(first_tag) {}

template <typename Body>
void BackendRank::attempt(Collective collective, int64_t other, const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    throw CommunicationError(fmt::format("rank {} no longer answers in {} (noticed by rank {}: {})",
                                         culprit(other), collective_name(collective), rank(),
                                         reason.substr(0, reason.find('\n'))));
  }
}

void BackendRank::exchange(Collective collective, const at::Tensor& sent, int64_t to,
                           const at::Tensor& received, int64_t from) {
  // Ranks in different calls wait rather than mix numbers.
  const int tag = first_tag_ + static_cast<int>(collective);
  const at::Tensor on_host = received.to(at::kCPU);
  std::vector<at::Tensor> outgoing{sent.to(at::kCPU)}, incoming{on_host};
  c10::intrusive_ptr<c10d::Work> sending, receiving;
  attempt(collective, to, [&] {
    if (sent.numel() > 0) sending = backend_->send(outgoing, static_cast<int>(to), tag);
  });
  attempt(collective, from, [&] {
    if (received.numel() > 0) receiving = backend_->recv(incoming, static_cast<int>(from), tag);
    if (receiving) receiving->wait(patience_);
  });
  attempt(collective, to, [&] {
    if (sending) sending->wait(patience_);
  });
  if (!received.is_cpu() && received.numel() > 0) received.copy_(on_host);
}

}  // namespace streambp
