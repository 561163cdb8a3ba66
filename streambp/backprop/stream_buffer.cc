#include "streambp/backprop/stream_buffer.h"

#include <utility>

#include "streambp/memory/meter.h"

namespace streambp {

StreamBuffer::StreamBuffer(const std::vector<int64_t>& shape, const at::TensorOptions& options,
                           Offload offload)
    : device_(options.device()), on_host_(offload == Offload::kHost) {
  if (!on_host_) {
    rows_ = at::empty(shape, options);
  } else if (device_.is_cuda()) {
    rows_ = at::empty(shape, options.device(at::kCPU).pinned_memory(true));
  } else {
    const HostMemoryScope host;
    rows_ = at::empty(shape, options);
  }
}

at::Tensor StreamBuffer::rows(int64_t begin, int64_t end) const {
  const at::Tensor rows = rows_.narrow(0, begin, end - begin);
  return on_host_ ? rows.to(rows.options().device(device_), /*non_blocking=*/false, /*copy=*/true) : rows;
}

void StreamBuffer::store(int64_t begin, const at::Tensor& rows) const {
  rows_.narrow(0, begin, rows.size(0)).copy_(rows);
}

at::Tensor StreamBuffer::take() {
  return std::exchange(rows_, at::Tensor());
}

}  // namespace streambp
