// The ops in plain ATen where the CPU's kernels would serve them.
#pragma once

#include <gtest/gtest.h>
#include <string>

#include "streambp/ops/backend.h"

namespace streambp {

/// Tests of an op by our kernels and, with the parameter false, in plain ATen, as on devices without them.
class WithAndWithoutKernels : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { serve(GetParam() ? Backend::kCpu : Backend::kNone); }
  void TearDown() override { serve(Backend::kCpu); }

 private:
  static void serve(Backend backend) {
    for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::Meta}) set_backend(device, backend);
  }
};

/// Names tests after the parameter.
struct KernelsName {
  std::string operator()(const testing::TestParamInfo<bool>& kernels) const {
    return kernels.param ? "Kernels" : "Plain";
  }
};

}  // namespace streambp
