// Finding the CUDA kernels at run time: they live in a shared library beside the program, so that one program
// runs on machines with and without CUDA.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "streambp/ops/cuda/kernels.h"

namespace streambp::cuda {

/// Counts up whenever the table of kernels or what they are told changes: a library of another build is not
/// taken.
inline constexpr uint64_t kInterface = 2;

/// Loads the library's kernels. Returns an empty text, or why they can't be had: then ATen's own ops serve.
std::string load_kernels(const std::filesystem::path& library);

/// The kernels that serve CUDA tensors; null where none were loaded.
const Kernels* kernels();

/// While it lives, `kernels` serve tensors on the CPU as if they lay on a GPU: for tests that run the way to
/// the kernels and the kernels' source without one (on_host.h).
class ServeCpu {
 public:
  explicit ServeCpu(const Kernels& kernels);
  ~ServeCpu();
  ServeCpu(const ServeCpu&) = delete;
  ServeCpu& operator=(const ServeCpu&) = delete;

  static bool is_on();

 private:
  const Kernels* outer_;
};

}  // namespace streambp::cuda
