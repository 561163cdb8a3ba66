// Between safetensors bytes and tensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "streambp/model/files/safetensors.h"

namespace streambp {

/// Reads a stored tensor into `into`, of its shape and contiguous, in any dtype and on any device; on the
/// meta device nothing is read. Throws InputError for a dtype that torch has no tensor for, and as
/// SafetensorsFile::read does.
void read_into(const StoredTensor& stored, const at::Tensor& into);

/// Tensor `name` of `file` on the CPU; throws InputError if there is none, for a dtype that torch has no
/// tensor for, and for a shape whose sizes' product, zeros left out, overflows 63 bits.
at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name);

/// The same, or an undefined tensor if there is none.
at::Tensor read_optional_tensor(const SafetensorsFile& file, const std::string& name);

/// Writes `tensors` by name, in their dtypes.
void write_tensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata = {});

/// A dtype by its name in configs and on the command line (float64, float32, bfloat16, float16).
/// Throws InputError that names the choices.
at::ScalarType parse_dtype(const std::string& name);
std::string dtype_name(at::ScalarType dtype);

}  // namespace streambp
