// Finding the CUDA kernels at run time: they live in a shared library next to the program, so that one
// program runs on machines with and without CUDA.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "streambp/ops/cuda/kernels.h"

namespace streambp::cuda {

/// Counts up whenever the table of kernels or their arguments change: a library of another build is not
/// taken.
inline constexpr uint64_t kInterface = 4;

/// Loads the library's kernels and asks GPU `device`, the first time that it is named, whether there is code
/// for it among them. Returns an empty text, or why they can't be had there: then ATen's own ops serve it.
std::string load_kernels(const std::filesystem::path& library, int device);

/// Whether load_kernels has found no code for this GPU.
bool is_refused(int device);

/// The kernels that serve where CUDA's do (backend.h); null: none, ATen's own ops serve.
const KernelTable* kernels();

/// Makes `kernels` those, and returns what they were.
const KernelTable* set_kernels(const KernelTable* kernels);

}  // namespace streambp::cuda
