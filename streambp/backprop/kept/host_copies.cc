#include "streambp/backprop/kept/host_copies.h"

#include <utility>

#include "streambp/memory/meter.h"
#include "streambp/runtime/torch_private.h"

namespace streambp {
namespace {

c10::Event mark(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

/// While it lives, work goes to another stream.
class OnStream {
 public:
  explicit OnStream(const c10::Stream& stream) : outer_(torch_private::exchange_stream(stream)) {}
  ~OnStream() { torch_private::exchange_stream(outer_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream outer_;
};

/// Copies rows to, or from, pieces that follow one another.
void copy_pieces(const at::Tensor& rows, const std::vector<at::Tensor>& pieces, bool to_pieces) {
  int64_t begin = 0;
  for (const at::Tensor& piece : pieces) {
    at::Tensor part = rows.narrow(0, begin, piece.size(0));
    if (to_pieces) {
      at::Tensor(piece).copy_(part, /*non_blocking=*/true);
    } else {
      part.copy_(piece, /*non_blocking=*/true);
    }
    begin += piece.size(0);
  }
}

}  // namespace

HostCopies::HostCopies(c10::Device device, const char* scope) : device_(device), scope_(scope) {
  if (!device.is_cuda()) return;
  in_ = torch_private::other_stream(device);
  out_ = torch_private::other_stream(device);
}

HostCopies::~HostCopies() {
  settle();
}

void HostCopies::leave(const at::Tensor& rows, const std::vector<at::Tensor>& to) {
  Leaving leaving{rows, std::nullopt};
  if (!out_) {
    copy_pieces(rows, to, /*to_pieces=*/true);
  } else {
    mark(torch_private::current_stream(device_)).block(*out_);
    const OnStream stream(*out_);
    copy_pieces(rows, to, /*to_pieces=*/true);
    leaving.done = mark(*out_);
  }
  leaving_.push_back(std::move(leaving));
}

Arriving HostCopies::fetch(const std::vector<at::Tensor>& from) {
  std::vector<int64_t> shape = from.front().sizes().vec();
  for (size_t i = 1; i < from.size(); ++i) shape.front() += from[i].size(0);
  const MemoryScope scope(scope_);
  // The device's stream owns it: its memory comes from, and goes back to, that stream's work.
  Arriving arriving{at::empty(shape, from.front().options().device(device_).pinned_memory(false)),
                    std::nullopt};
  if (!in_) {
    copy_pieces(arriving.rows, from, /*to_pieces=*/false);
    return arriving;
  }
  mark(torch_private::current_stream(device_)).block(*in_);
  for (const Leaving& leaving : leaving_) leaving.done->block(*in_);
  const OnStream stream(*in_);
  copy_pieces(arriving.rows, from, /*to_pieces=*/false);
  arriving.ready = mark(*in_);
  return arriving;
}

at::Tensor HostCopies::arrive(Arriving&& arriving) const {
  if (arriving.ready) arriving.ready->block(torch_private::current_stream(device_));
  return std::move(arriving.rows);
}

void HostCopies::settle() {
  for (Leaving& leaving : leaving_) {
    if (leaving.done) leaving.done->block(torch_private::current_stream(device_));
  }
  leaving_.clear();
}

}  // namespace streambp
