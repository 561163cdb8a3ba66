// Checkpoints whose tensors a test makes byte by byte.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "streambp/model/files/checkpoint.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp {

struct MadeTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

/// What Checkpoint::open says of `folder`, which has a config.json, with these tensors.
inline Checkpoint open_made(const TempFolder& folder, const std::map<std::string, MadeTensor>& tensors) {
  std::vector<SafetensorsView> views;
  for (const auto& [name, tensor] : tensors)
    views.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  write_safetensors(folder.path() / "model.safetensors", views);
  return Checkpoint::open(folder.path());
}

}  // namespace streambp
