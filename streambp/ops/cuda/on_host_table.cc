// The kernels' very source, compiled for the host.
#include "streambp/ops/cuda/table.cuh"

namespace streambp::cuda {

const KernelTable& kernels_on_host() {
  static const KernelTable kernels = all_kernels();
  return kernels;
}

}  // namespace streambp::cuda
