#include "streambp/distributed/transport/backend_rank.h"

#include <string>
#include <utility>
#include <vector>

#include <c10/core/DeviceGuard.h>

#include "streambp/error.h"

namespace streambp {

BackendRank::BackendRank(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds patience,
                         int first_tag, c10::intrusive_ptr<c10d::Backend> of_device)
    : Communicator(backend->getRank(), backend->getSize()),
      backend_(std::move(backend)),
      patience_(patience),
      first_tag_(first_tag),
      of_device_(std::move(of_device)) {}

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
  if (of_device_ != nullptr && sent.is_cuda())
    return exchange_on_device(collective, sent, to, received, from);
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

void BackendRank::exchange_on_device(Collective collective, const at::Tensor& sent, int64_t to,
                                     const at::Tensor& received, int64_t from) {
  if (sent.numel() == 0 && received.numel() == 0) return;
  const c10::DeviceGuard guard(sent.device());
  std::vector<at::Tensor> outgoing{sent}, incoming{received};
  attempt(collective, from, [&] {
    // Both at once: one after the other would wait for the other rank's.
    of_device_->startCoalescing();
    if (sent.numel() > 0) of_device_->send(outgoing, static_cast<int>(to), 0);
    if (received.numel() > 0) of_device_->recv(incoming, static_cast<int>(from), 0);
    of_device_->endCoalescing()->wait(patience_);
  });
}

}  // namespace streambp
