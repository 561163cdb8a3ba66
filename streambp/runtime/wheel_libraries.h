// Libraries of the torch wheel that others look for by name alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace streambp {

/// The folder of a library that the process has loaded; empty where it has none of that name.
std::filesystem::path folder_of_library(const std::string& name);

/// Opens libnvrtc and its builtins next to the wheel whose libraries lie in `torch_libraries`
/// (site-packages/torch/lib), so that they are there when cuDNN asks for libnvrtc by its bare name: without
/// it cuDNN builds no attention kernel. That the wheels of CUDA 13 keep it in nvidia/cu13/lib and earlier
/// ones in nvidia/cuda_nvrtc/lib is torch's own knowledge (torch/__init__.py, _preload_cuda_deps). Best
/// effort: returns what was opened, nothing where there is none; cuDNN then finds it by LD_LIBRARY_PATH, or
/// says that it has no kernel.
std::vector<std::string> open_nvrtc(const std::filesystem::path& torch_libraries);

}  // namespace streambp
