// libstreambp_nccl.so: all of NCCL that the project includes, and all that is linked with torch's CUDA
// library.
#include <chrono>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

/// A backend that the caller owns.
extern "C" c10d::Backend* streambp_open_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             int64_t milliseconds) {
  // wait() otherwise returns when a message is on its stream, and a rank that has died ends this process
  // from a thread of NCCL's rather than with an exception.
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", /*overwrite=*/1);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(milliseconds);
  c10::intrusive_ptr<c10d::Backend> backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  return backend.release();
}
