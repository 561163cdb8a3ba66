#include "streambp/runtime/wheel_libraries.h"

#include <algorithm>
#include <dlfcn.h>
#include <link.h>

namespace streambp {
namespace {

namespace fs = std::filesystem;

/// Files of `folder` that begin with `prefix`, in order.
std::vector<fs::path> files_of(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    // libnvrtc.alt.so is another build of the same.
    if (name.starts_with(prefix) && name.find(".alt.") == std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

fs::path folder_of_library(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  return fs::path(map->l_name).parent_path();
}

std::vector<std::string> open_nvrtc(const fs::path& torch_libraries) {
  const fs::path packages = torch_libraries.parent_path().parent_path();
  std::vector<std::string> opened;
  // The builtins are what libnvrtc itself opens by name.
  for (const char* const prefix : {"libnvrtc.so", "libnvrtc-builtins.so"}) {
    for (const char* const folder : {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"}) {
      const std::vector<fs::path> files = files_of(packages / folder, prefix);
      const auto works = [](const fs::path& file) {
        return dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
      };
      const auto file = std::find_if(files.begin(), files.end(), works);
      if (file == files.end()) continue;
      opened.push_back(file->string());
      break;
    }
  }
  return opened;
}

}  // namespace streambp
