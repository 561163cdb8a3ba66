// NCCL, which torch's CUDA library has in it: messages between GPUs without the host.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace streambp {

/// NCCL's backend for rank `rank` of `size`, each with a GPU of its own, which has been opened (open_device).
/// Ranks find each other through `store`; a message that is waited for gives up after `patience`. Loads
/// libstreambp_nccl.so from the program's folder, since nothing else here is linked with CUDA. Throws
/// InputError where there is none: it is built where the CUDA toolkit and nccl.h are found.
c10::intrusive_ptr<c10d::Backend> open_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds patience);

}  // namespace streambp
