#include "streambp/model/quantized/packed.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <string_view>

#include "streambp/model/config/read/config_reader.h"
#include "streambp/model/files/stored_parts.h"

namespace streambp {
namespace {

using nlohmann::json;
using Tensors = std::map<std::string, StoredTensor>;

constexpr const char* kPackingKey = "quantization_config";
constexpr int64_t kFp8Block = 128;  // rows and columns, where config.json says nothing of them
constexpr const char* kCure =
    ": download the file again, or load the model in transformers with dequantize=True and save it in "
    "bfloat16";
constexpr std::array<std::string_view, 5> kScaleDtypes = {"F32", "BF16", "F16", "F8_E8M0", "U8"};

/// What `look` says of the object of config.json that has the key.
template <typename Look>
auto of_settings(const std::filesystem::path& config_json, const Look& look) {
  const std::string where = config_json.string();
  const json document = parse_config_json(read_text_file(config_json), where);
  const ConfigReader file(document, where);
  const bool inside = file.find(kPackingKey) == nullptr && file.find("text_config") != nullptr;
  return look(inside ? file.inner("text_config") : file);
}

std::optional<std::array<int64_t, 2>> parse_block(const ConfigReader& reader) {
  constexpr const char* kSize = "weight_block_size";
  if (!reader.has(kSize)) return std::array{kFp8Block, kFp8Block};
  const json* const sizes = reader.find(kSize);
  if (sizes == nullptr) return {};
  const auto is_size = [](const json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxIntermediate;
  };
  if (!sizes->is_array() || sizes->size() != 2 || !std::all_of(sizes->begin(), sizes->end(), is_size))
    reader.refuse(kSize, fmt::format("two sizes from 1 to {}, or null", kMaxIntermediate));
  return std::array{(*sizes)[0].get<int64_t>(), (*sizes)[1].get<int64_t>()};
}

// [experts, in, out]: each output's inputs in blocks, two of their values a byte.
Tensors mxfp4_entries(const ParameterShape& parameter, const Packing& packing, const Tensors& tensors) {
  const std::string blocks = parameter.name + "_blocks", scales = scales_name(packing, parameter.name);
  const auto one = tensors.contains(blocks) ? tensors.find(blocks) : tensors.find(scales);
  if (tensors.contains(parameter.name) || one == tensors.end() || parameter.shape.size() != 3) return {};
  StoredParts parts(one->second, tensors, kCure);
  const int64_t experts = parameter.shape[0], inputs = parameter.shape[1], outputs = parameter.shape[2];
  if (inputs % kMxfp4Block != 0)
    parts.refuse(one->second,
                 fmt::format("a parameter whose {} inputs are blocks of {}", inputs, kMxfp4Block));
  const int64_t count = inputs / kMxfp4Block;
  parts.keep(parameter.name, parts.take(blocks, "U8", {experts, outputs, count, kMxfp4Block / 2}));
  parts.take(scales, "U8", {experts, outputs, count});
  return parts.release();
}

bool is_grid(const std::vector<int64_t>& shape, const ParameterShape& parameter, const Packing& packing) {
  if (!packing.block) {
    return shape.size() <= 2 &&
           std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size == 1; });
  }
  const auto parts = [&](size_t i) {
    return (parameter.shape[i] + (*packing.block)[i] - 1) / (*packing.block)[i];
  };
  return shape == std::vector{parts(0), parts(1)};
}

Tensors fp8_entries(const ParameterShape& parameter, const Packing& of_fp8, const Tensors& tensors) {
  const auto found = tensors.find(parameter.name);
  if (found == tensors.end()) return {};
  const bool pairs = found->second.entry().dtype == kPairsDtype && parameter.role != ParameterRole::kHash;
  if (!pairs && !found->second.entry().dtype.starts_with("F8_")) return {};
  Packing packing = of_fp8;
  if (pairs) packing.block = {1, kMxfp4Block};
  StoredParts parts(found->second, tensors, kCure);
  if (parameter.shape.size() != 2) parts.refuse(found->second, "F32, BF16 or F16: it is no matrix");
  if (pairs && parameter.shape[1] % kMxfp4Block != 0)
    parts.refuse(found->second,
                 fmt::format("a matrix whose {} inputs are blocks of {}", parameter.shape[1], kMxfp4Block));
  if (pairs) {
    parts.take(parameter.name, kPairsDtype, {parameter.shape[0], parameter.shape[1] / 2});
  } else {
    parts.take(parameter.name, "F8_E4M3", parameter.shape);
  }
  const std::string name = scales_name(packing, parameter.name);
  const StoredTensor& scales = parts.find(name);
  const SafetensorsEntry& entry = scales.entry();
  const bool is_known =
      std::find(kScaleDtypes.begin(), kScaleDtypes.end(), entry.dtype) != kScaleDtypes.end();
  if (!is_known || !is_grid(entry.shape, parameter, packing)) {
    const std::string blocks =
        packing.block ? fmt::format("blocks of {} x {}", (*packing.block)[0], (*packing.block)[1])
                      : "one scale (weight_block_size null)";
    parts.refuse(scales, fmt::format("{} of {} for {}", fmt::join(kScaleDtypes, ", "), blocks,
                                     shown(parameter.shape)));
  }
  parts.keep(name, scales);
  const std::string activations = module_of(parameter.name) + ".activation_scale";
  if (parts.has(activations)) parts.keep(activations, parts.find(activations));
  return parts.release();
}

}  // namespace

bool stored_packed(const ConfigReader& settings) {
  const json* const found = settings.find(kPackingKey);
  if (found == nullptr || !found->is_object()) return false;
  const std::string method = settings.inner(kPackingKey).text("quant_method").value_or("");
  return method == "mxfp4" || method == "fp8";
}

bool is_packed(const std::filesystem::path& config_json) {
  return of_settings(config_json, stored_packed);
}

std::optional<Packing> read_packing(const std::filesystem::path& config_json) {
  return of_settings(config_json, [](const ConfigReader& settings) -> std::optional<Packing> {
    if (!stored_packed(settings)) return {};
    const ConfigReader reader = settings.inner(kPackingKey);
    if (reader.text("quant_method") == "mxfp4") return Packing{};
    return Packing{PackedFormat::kFp8, parse_block(reader)};
  });
}

std::string packing_note(const Packing& packing, const std::string& dtype) {
  return fmt::format(
      "its {} weights are dequantised to {} as they are read, as by transformers with dequantize=True",
      packing.format == PackedFormat::kMxfp4 ? "MXFP4" : "FP8", dtype);
}

std::string scales_name(const Packing& packing, const std::string& name) {
  return name + (packing.format == PackedFormat::kMxfp4 ? "_scales" : "_scale_inv");
}

std::map<std::string, StoredTensor> packed_entries(const ParameterShape& parameter, const Packing& packing,
                                                   const Tensors& tensors) {
  const bool mxfp4 = packing.format == PackedFormat::kMxfp4;
  return mxfp4 ? mxfp4_entries(parameter, packing, tensors) : fp8_entries(parameter, packing, tensors);
}

}  // namespace streambp
