#include "verify/compare/gradient_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::verify {
namespace {

namespace fs = std::filesystem;

/// The shards that an index names, in its own folder alone.
std::vector<fs::path> shards_of(const fs::path& index) {
  const nlohmann::json document = parse_strict_json(read_text_file(index), index.string());
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (map == document.end() || !map->is_object())
    throw InputError("{}: no weight_map object in it", index.string());
  std::set<fs::path> shards;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || fs::path(file.get<std::string>()).filename() != file.get<std::string>())
      throw InputError("{}: weight_map of {} is {}, expected the name of a file next to it", index.string(),
                       shown(name), shown(file));
    shards.insert(index.parent_path() / file.get<std::string>());
  }
  return {shards.begin(), shards.end()};
}

std::vector<fs::path> files_of(const fs::path& path) {
  if (path.string().ends_with(".index.json")) return shards_of(path);
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

}  // namespace

Tensors read_gradients(const std::string& path) {
  Tensors gradients;
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
  if (gradients.empty()) throw InputError("{}: no gradients in it", path);
  return gradients;
}

}  // namespace streambp::verify
