// Where the models of the checks lie.
#pragma once

#include <c10/core/Device.h>

namespace streambp::verify {

/// The CPU, until `--device` of the command line names another.
inline c10::Device& checked_device() {
  static c10::Device device(c10::DeviceType::CPU);
  return device;
}

}  // namespace streambp::verify
