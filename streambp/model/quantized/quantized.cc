#include "streambp/model/quantized/quantized.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/quantized/quantized_codes.h"

namespace streambp {
namespace {

at::Tensor read_stored(const StoredTensor& stored, at::ScalarType dtype, c10::Device device) {
  const at::Tensor tensor = at::empty(stored.entry().shape, at::TensorOptions().dtype(dtype).device(device));
  read_into(stored, tensor);
  return tensor;
}

void check_quant_map(const StoredTensor& stored, QuantType type) {
  constexpr float kNear = 1e-6F;  // bitsandbytes itself computes with its own table
  QuantCodes codes{};
  stored.read(0, std::as_writable_bytes(std::span(codes)));
  for (size_t i = 0; i < codes.size(); ++i) {
    if (!(std::abs(codes[i] - codes_of(type)[i]) <= kNear)) {
      throw InputError("{}: tensor {}: entry {} is {}, expected {}, as {} has it",
                       stored.file.path().string(), shown(stored.name), i, codes[i], codes_of(type)[i],
                       quant_type_name(type));
    }
  }
}

}  // namespace

int64_t QuantizedTensor::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : {packed, absmax, nested_absmax, nested_code}) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

bool is_quantized(const StoredTensor& stored) {
  const std::string& dtype = stored.entry().dtype;
  return dtype == "U8" || dtype == "I8";
}

QuantizedTensor read_quantized(const FindStored& find, const std::string& name,
                               const std::vector<int64_t>& shape, c10::Device device) {
  const QuantizedNames names(name);
  const auto read = [&](const std::string& part, at::ScalarType dtype) {
    return read_stored(find(part), dtype, device);
  };
  QuantizedTensor quantized;
  quantized.shape = shape;
  if (find(name).entry().dtype == "I8") {
    quantized.type = QuantType::kInt8;
    quantized.packed = read(name, at::kChar);
    quantized.absmax = read(names.row_maxima, at::kFloat);
    return quantized;
  }
  const StoredTensor& stored = find(names.state);
  quantized.type =
      stored.name.ends_with(quant_type_name(QuantType::kNf4)) ? QuantType::kNf4 : QuantType::kFp4;
  check_quant_map(find(names.quant_map), quantized.type);
  const QuantState state = read_quant_state(stored, quantized.type, shape);
  quantized.dtype = parse_dtype(state.dtype);
  quantized.blocksize = state.blocksize;
  quantized.packed = read(name, at::kByte).view({-1});
  quantized.absmax = read(names.absmax, state.nested ? at::kByte : at::kFloat);
  if (!state.nested) return quantized;
  quantized.nested_absmax = read(names.nested_absmax, at::kFloat);
  quantized.nested_code = read(names.nested_quant_map, at::kFloat);
  quantized.nested_blocksize = state.nested_blocksize;
  quantized.nested_offset = state.nested_offset;
  return quantized;
}

void add_stored(const QuantizedTensor& quantized, const std::string& name,
                std::map<std::string, at::Tensor>& tensors) {
  const QuantizedNames names(name);
  if (quantized.type == QuantType::kInt8) {
    tensors[name] = quantized.packed;
    tensors[names.row_maxima] = quantized.absmax;
    tensors[names.weight_format] = at::zeros({}, at::kByte);
    return;
  }
  const QuantState state{.type = quantized.type,
                         .blocksize = quantized.blocksize,
                         .dtype = dtype_name(quantized.dtype),
                         .nested = quantized.nested(),
                         .nested_blocksize = quantized.nested_blocksize,
                         .nested_offset = quantized.nested_offset,
                         .shape = quantized.shape};
  const std::string json = quant_state_json(state);
  tensors[name] = quantized.packed.view({-1, 1});
  tensors[names.absmax] = quantized.absmax;
  tensors[names.quant_map] = at::tensor(at::ArrayRef<float>(codes_of(quantized.type)), at::kFloat);
  tensors[names.stored_state(quantized.type)] = at::tensor(
      at::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(json.data()), json.size()), at::kByte);
  if (!quantized.nested()) return;
  tensors[names.nested_absmax] = quantized.nested_absmax;
  tensors[names.nested_quant_map] = quantized.nested_code;
}

}  // namespace streambp
