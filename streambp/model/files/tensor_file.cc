#include "streambp/model/files/tensor_file.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

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

at::ScalarType stored_dtype(const StoredTensor& stored) {
  const std::string& dtype = stored.entry().dtype;
  for (const DtypeNames& names : kDtypes) {
    if (dtype == names.safetensors) return names.type;
  }
  throw InputError("{}: tensor {}: dtype {}: expected F64, F32, BF16, F16, I64, I32, I16, I8, U8 or BOOL",
                   stored.file.path().string(), shown(stored.name), dtype);
}

}  // namespace

void read_into(const StoredTensor& stored, const at::Tensor& into) {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  const at::ScalarType dtype = stored_dtype(stored);
  if (into.is_meta() || into.numel() == 0) return;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  if (into.is_cpu() && into.scalar_type() == dtype) {
    stored.read(0, {static_cast<std::byte*>(into.mutable_data_ptr()), into.nbytes()});
    return;
  }
  // Converted, or sent to a device, in parts: a second copy of a whole embedding would count as memory.
  const at::Tensor flat = into.view({-1});
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(flat.numel(), kAtOnce) * element));
  for (int64_t begin = 0; begin < flat.numel(); begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, flat.numel() - begin);
    stored.read(static_cast<uint64_t>(begin * element),
                std::span(buffer).first(static_cast<size_t>(count * element)));
    flat.narrow(0, begin, count)
        .copy_(at::from_blob(buffer.data(), {count}, at::TensorOptions().dtype(dtype)));
  }
}

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor stored{file, name};
  const std::vector<int64_t>& shape = stored.entry().shape;
  // The format allows any sizes next to a zero; a tensor's strides leave zeros out.
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size > 0 && __builtin_mul_overflow(product, size, &product)) {
      throw InputError("{}: tensor {}: shape [{}] overflows 63 bits", file.path().string(), shown(name),
                       fmt::join(shape, ", "));
    }
  }
  at::Tensor tensor = at::empty(shape, stored_dtype(stored));
  read_into(stored, tensor);
  return tensor;
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
  // Short ones are what trainers call them.
  const std::string whole = name.starts_with("fp") ? "float" + name.substr(2)
                            : name == "bf16"       ? "bfloat16"
                                                   : name;
  for (const DtypeNames& names : kDtypes) {
    if (whole == names.name && at::isFloatingType(names.type)) return names.type;
  }
  throw InputError("dtype '{}': expected float64, float32, bfloat16 or float16", name);
}

std::string dtype_name(at::ScalarType dtype) {
  return names_of(dtype).name;
}

}  // namespace streambp
