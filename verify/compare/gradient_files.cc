#include "verify/compare/gradient_files.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/checkpoint.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::verify {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.empty())
    throw InputError("{}: a folder without safetensors files, expected gradients", path.string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Those of the files of `path`, of a golden case those named grad.
void add_files(const std::string& path, Tensors& gradients) {
  const std::string prefix = "grad.";
  for (const fs::path& one : files_of(path)) {
    const SafetensorsFile file = SafetensorsFile::open(one);
    const bool golden = file.entries().contains("in.input_ids");
    for (const auto& [name, entry] : file.entries()) {
      if (golden && !name.starts_with(prefix)) continue;
      const std::string own = golden ? name.substr(prefix.size()) : name;
      if (!gradients.emplace(own, read_tensor(file, name)).second)
        throw InputError("{}: {} is in another file of {} too; expected each gradient once, whole",
                         one.string(), shown(own), path);
    }
  }
}

}  // namespace

Tensors read_gradients(const std::string& path) {
  Tensors gradients;
  if (path.ends_with(".index.json")) {
    for (const auto& [name, file] : sharded_files(path)) gradients.emplace(name, read_tensor(file, name));
  } else {
    add_files(path, gradients);
  }
  if (gradients.empty()) throw InputError("{}: no gradients in it", path);
  return gradients;
}

}  // namespace streambp::verify
