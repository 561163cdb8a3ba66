#include "streambp/ops/stand_in.h"

#include "streambp/error.h"
#include "streambp/ops/cuda/library.h"

namespace streambp {
namespace {

c10::DeviceType stands_for = c10::DeviceType::CPU;

}  // namespace

void set_meta_stands_for(c10::DeviceType device) {
  if (device != c10::DeviceType::CPU && device != c10::DeviceType::CUDA)
    throw InputError("the meta device can't stand for {}: expected cpu or cuda", c10::DeviceTypeName(device));
  stands_for = device;
}

c10::DeviceType meta_stands_for() {
  return stands_for;
}

bool is_for_cuda(const at::Tensor& x) {
  if (x.is_cuda()) return true;
  if (x.is_meta()) return stands_for == c10::DeviceType::CUDA;
  return x.is_cpu() && cuda::ServeCpu::is_on();
}

}  // namespace streambp
