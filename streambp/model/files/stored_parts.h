// The tensors that store one quantised parameter together.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/safetensors.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {

/// Takes a parameter's parts out of `tensors`, each of which has to be there and of the dtype and shape that
/// is asked for; InputError names file and tensor otherwise, and ends with `cure`.
class StoredParts {
 public:
  StoredParts(const StoredTensor& first, const std::map<std::string, StoredTensor>& tensors,
              std::string cure = {})
      : file_(first.file.path().string()), tensors_(tensors), cure_(std::move(cure)) {}

  const StoredTensor& take(const std::string& name, const char* dtype, const std::vector<int64_t>& shape) {
    const StoredTensor& stored = find(name);
    const SafetensorsEntry& entry = stored.entry();
    if (entry.dtype != dtype || entry.shape != shape) refuse(stored, std::string(dtype) + " " + shown(shape));
    return taken_.emplace(name, stored).first->second;
  }

  const StoredTensor& find(const std::string& name) const {
    const auto at = tensors_.find(name);
    if (at == tensors_.end())
      throw InputError("{}: tensor {} is missing, which the quantised weight needs{}", file_, shown(name),
                       cure_);
    return at->second;
  }

  [[noreturn]] void refuse(const StoredTensor& stored, const std::string& expected) const {
    throw InputError("{}: tensor {} is {} {}, expected {}{}", stored.file.path().string(), shown(stored.name),
                     stored.entry().dtype, shown(stored.entry().shape), expected, cure_);
  }

  bool has(const std::string& name) const { return tensors_.contains(name); }
  void keep(const std::string& name, const StoredTensor& stored) { taken_.emplace(name, stored); }
  std::map<std::string, StoredTensor> release() { return std::move(taken_); }

 private:
  std::string file_;
  const std::map<std::string, StoredTensor>& tensors_;
  std::string cure_;
  std::map<std::string, StoredTensor> taken_;
};

}  // namespace streambp
