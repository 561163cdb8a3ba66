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

bool is_for_cuda(c10::Device device) {
  return device.is_cuda() || (device.is_meta() && stands_for == c10::DeviceType::CUDA);
}

bool is_for_cuda(const at::Tensor& x) {
  return is_for_cuda(x.device()) || (x.is_cpu() && cuda::ServeCpu::is_on());
}

}  // namespace streambp
