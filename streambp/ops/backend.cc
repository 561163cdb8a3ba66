#include "streambp/ops/backend.h"

#include "streambp/error.h"

namespace streambp {
namespace {

Backend of_cpu = Backend::kCpu;
Backend of_meta = Backend::kCpu;

}  // namespace

Backend backend_of(c10::DeviceType device) {
  switch (device) {
    case c10::DeviceType::CPU:
      return of_cpu;
    case c10::DeviceType::Meta:
      return of_meta;
    case c10::DeviceType::CUDA:
      return Backend::kCuda;
    default:
      return Backend::kNone;
  }
}

void set_backend(c10::DeviceType device, Backend backend) {
  if (device != c10::DeviceType::CPU && device != c10::DeviceType::Meta)
    throw InputError("the backend of {}: expected cpu or meta", c10::DeviceTypeName(device, /*lower=*/true));
  (device == c10::DeviceType::Meta ? of_meta : of_cpu) = backend;
}

}  // namespace streambp
