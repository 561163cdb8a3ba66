// Writing safetensors files.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "streambp/error.h"
#include "streambp/model/files/safetensors.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/runtime/output_file.h"

namespace streambp {
namespace {

using nlohmann::json;

// `text` as a JSON string.
std::string json_string(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw InputError("{} is not UTF-8", shown(text));
  }
}

std::string header_text(const std::vector<SafetensorsView>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] { text += text.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    std::string_view comma;
    for (const auto& [key, value] : metadata) {
      text += fmt::format("{}{}:{}", std::exchange(comma, ","), json_string(key), json_string(value));
    }
    text += "}";
  }
  uint64_t begin = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (const SafetensorsView& tensor : tensors) {
    const std::string name = json_string(tensor.name);
    if (!names.insert(tensor.name).second)
      throw InputError("tensor name {} is taken or reserved", shown(tensor.name));
    const uint64_t size = safetensors_size(tensor.dtype, tensor.shape);
    if (size != tensor.bytes.size()) {
      throw InputError("tensor {} has {} bytes, expected {} for {} {}", shown(tensor.name),
                       tensor.bytes.size(), size, tensor.dtype, shown(tensor.shape));
    }
    separate();
    text += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, tensor.dtype,
                        json(tensor.shape).dump(), begin, begin + size);
    begin += size;
  }
  text += "}";
  // The data starts on a multiple of 8, the largest element size.
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    throw InputError("header of {} bytes, expected at most {}", text.size(), kMaxSafetensorsHeader);
  }
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsView& a, const SafetensorsView& b) {
    const int bits_a = safetensors_bits(a.dtype);
    const int bits_b = safetensors_bits(b.dtype);
    return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
  });
  std::string header;
  try {
    header = header_text(tensors, metadata);
  } catch (const InputError& error) {
    throw InputError("{}: {}", path.string(), error.what());
  }
  const uint64_t length = header.size();
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const SafetensorsView& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

}  // namespace streambp
