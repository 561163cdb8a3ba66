#include "streambp/model/tensor_file.h"

#include <array>
#include <utility>

#include "streambp/error.h"

namespace streambp {
namespace {

struct DtypeNames {
  at::ScalarType type;
  const char* safetensors;
  const char* name;
};

constexpr std::array kDtypes{
    DtypeNames{at::kDouble, "F64", "float64"},     DtypeNames{at::kFloat, "F32", "float32"},
    DtypeNames{at::kBFloat16, "BF16", "bfloat16"}, DtypeNames{at::kHalf, "F16", "float16"},
    DtypeNames{at::kLong, "I64", "int64"},         DtypeNames{at::kInt, "I32", "int32"},
    DtypeNames{at::kShort, "I16", "int16"},        DtypeNames{at::kChar, "I8", "int8"},
    DtypeNames{at::kByte, "U8", "uint8"},          DtypeNames{at::kBool, "BOOL", "bool"}};

const DtypeNames& names_of(at::ScalarType type) {
  for (const DtypeNames& names : kDtypes) {
    if (names.type == type) return names;
  }
  throw InputError("dtype {}: no name in the safetensors format", c10::toString(type));
}

}  // namespace

at::Tensor as_tensor(const SafetensorsEntry& entry, std::span<const std::byte> bytes) {
  for (const DtypeNames& names : kDtypes) {
    if (entry.dtype != names.safetensors) continue;
    if (bytes.empty()) return at::empty(entry.shape, names.type);
    return at::from_blob(const_cast<std::byte*>(bytes.data()), entry.shape,
                         at::TensorOptions().dtype(names.type));
  }
  throw InputError("dtype {}: expected F64, F32, BF16, F16, an integer or BOOL", entry.dtype);
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry& entry = file.entry(name);
  try {
    return as_tensor(entry, file.bytes(name)).clone();
  } catch (const InputError& error) {
    throw InputError("{}: tensor '{}': {}", file.path().string(), name, error.what());
  }
}

at::Tensor read_optional_tensor(const SafetensorsFile& file, const std::string& name) {
  return file.entries().contains(name) ? read_tensor(file, name) : at::Tensor();
}

void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<at::Tensor> kept;  // contiguous copies must live until they are written
  std::vector<SafetensorsView> views;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.to(at::kCPU).contiguous());
    const at::Tensor& data = kept.back();
    views.push_back({name,
                     names_of(data.scalar_type()).safetensors,
                     data.sizes().vec(),
                     {static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes()}});
  }
  write_safetensors(path, std::move(views), metadata);
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const DtypeNames& names : kDtypes) {
    if (name == names.name && at::isFloatingType(names.type)) return names.type;
  }
  throw InputError("dtype '{}': expected float64, float32, bfloat16 or float16", name);
}

std::string dtype_name(at::ScalarType dtype) {
  return names_of(dtype).name;
}

}  // namespace streambp
