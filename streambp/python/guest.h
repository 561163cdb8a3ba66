// The library as a guest in somebody else's process: what it leaves as it found it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "streambp/error.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::python {

/// What body() returns. Python tells bad input from other failures by the prefix of the message.
template <typename Body>
auto answered(Body body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw std::runtime_error(std::string("streambp: ") + error.what());
  }
}

/// Inside a call: no autocast, no hooks of the caller on what our own graphs save, no graph of its own. As
/// before when it ends.
struct GuestScope {
  torch_private::WithoutAutocastOrHooks undisturbed;
  at::NoGradGuard no_grad;
};

/// Makes `device` ready: of a GPU, loads our kernels from the folder of this shared library. Throws
/// InputError for a device that the library has nothing for.
void join_device(const std::string& device);

}  // namespace streambp::python
