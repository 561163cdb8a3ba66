#include "streambp/model/quantized/quantization.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <span>
#include <string_view>
#include <utility>

#include "streambp/model/config/read/config_reader.h"
#include "streambp/model/files/stored_parts.h"
#include "streambp/model/quantized/packed.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr const char* kQuantizationKey = "quantization_config";
// Those that bitsandbytes has kernels for.
constexpr std::array<int64_t, 8> kBlockSizes = {32, 64, 128, 256, 512, 1024, 2048, 4096};
constexpr uint64_t kMaxStateBytes = 4096;

// Of transformers' BitsAndBytesConfig.
constexpr std::array<const char*, 14> kKnown = {"quant_method",
                                                "_load_in_4bit",
                                                "_load_in_8bit",
                                                "load_in_4bit",
                                                "load_in_8bit",
                                                "bnb_4bit_quant_type",
                                                "bnb_4bit_use_double_quant",
                                                "bnb_4bit_compute_dtype",
                                                "bnb_4bit_quant_storage",
                                                "llm_int8_skip_modules",
                                                "llm_int8_threshold",
                                                "llm_int8_has_fp16_weight",
                                                "llm_int8_enable_fp32_cpu_offload",
                                                "modules_to_not_convert"};

// What bnb_4bit_quant_storage may be, and what files call those of them that are numbers.
constexpr std::array<std::string_view, 4> kStorages = {"uint8", "bfloat16", "float16", "float32"};
constexpr std::array<std::string_view, 3> kStorageDtypes = {"BF16", "F16", "F32"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_dtype(const std::string& name) {
  return name == "float32" || name == "bfloat16" || name == "float16";
}

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

int64_t in_parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

void take_int8(const ParameterShape& parameter, const QuantizedNames& names, StoredParts& entries) {
  entries.take(parameter.name, "I8", parameter.shape);
  entries.take(names.row_maxima, "F32", {parameter.shape[0]});
  if (!entries.has(names.weight_format)) return;  // bitsandbytes before 0.37
  const StoredTensor& format = entries.take(names.weight_format, "U8", {});
  std::byte value{};
  format.read(0, {&value, 1});
  if (value != std::byte{0}) {
    throw InputError("{}: tensor {} is {}, expected 0 (rows): save the model with a newer bitsandbytes",
                     format.file.path().string(), shown(format.name), std::to_integer<int>(value));
  }
}

/// A column of numbers as its bytes, which is what bnb_4bit_quant_storage leaves: FSDP shards tensors of one
/// dtype alone.
StoredTensor in_bytes(StoredTensor stored) {
  SafetensorsEntry entry = stored.entry();
  if (!contains(kStorageDtypes, entry.dtype) || entry.shape.size() != 2 || entry.shape[1] != 1) return stored;
  entry.dtype = "U8";
  entry.shape[0] = static_cast<int64_t>(entry.end - entry.begin);
  stored.part = std::move(entry);
  return stored;
}

void take_4bit(const ParameterShape& parameter, QuantType type, const QuantizedNames& names,
               StoredParts& entries) {
  const int64_t count = count_of(parameter.shape);
  const std::vector<int64_t> bytes{in_parts(count, 2), 1};
  const StoredTensor packed = in_bytes(entries.find(parameter.name));
  if (packed.entry().dtype != "U8" || packed.entry().shape != bytes)
    entries.refuse(entries.find(parameter.name), "U8 " + shown(bytes));
  entries.keep(parameter.name, packed);
  const StoredTensor& stored = entries.find(names.stored_state(type));
  const QuantState state = read_quant_state(stored, type, parameter.shape);
  entries.take(names.stored_state(type), "U8", stored.entry().shape);
  const int64_t blocks = in_parts(count, state.blocksize);
  entries.take(names.absmax, state.nested ? "U8" : "F32", {blocks});
  entries.take(names.quant_map, "F32", {16});
  if (!state.nested) return;
  entries.take(names.nested_absmax, "F32", {in_parts(blocks, state.nested_blocksize)});
  entries.take(names.nested_quant_map, "F32", {256});
}

// Of a dtype as BitsAndBytesConfig writes it; absent: float32.
void check_compute_dtype(const ConfigReader& reader) {
  const std::string name = reader.text("bnb_4bit_compute_dtype").value_or("float32");
  if (!is_dtype(name)) reader.refuse("bnb_4bit_compute_dtype", "one of float32, bfloat16, float16");
}

void check_modules(const ConfigReader& reader, const char* key) {
  const json* const modules = reader.find(key);
  const auto is_text = [](const json& name) { return name.is_string(); };
  if (modules != nullptr && (!modules->is_array() || !std::all_of(modules->begin(), modules->end(), is_text)))
    reader.refuse(key, "a list of module names, or null");
}

}  // namespace

const char* quant_type_name(QuantType type) {
  switch (type) {
    case QuantType::kNf4:
      return "nf4";
    case QuantType::kFp4:
      return "fp4";
    case QuantType::kInt8:
      break;
  }
  return "int8";
}

std::string quantization_name(const Quantization& quantization) {
  return std::string(quant_type_name(quantization.type)) + (quantization.experts ? "-experts" : "");
}

std::optional<Quantization> parse_quantization(const std::string& type, bool double_quant) {
  std::optional<Quantization> quantization;
  for (const QuantType known : {QuantType::kNf4, QuantType::kFp4, QuantType::kInt8}) {
    for (const bool experts : {false, true}) {
      const Quantization one{known, double_quant, experts};
      if (type == quantization_name(one)) quantization = one;
    }
  }
  if (!quantization && type != "none")
    throw InputError("--quantize {}: expected none, nf4, fp4 or int8, or one of them with -experts",
                     shown(type));
  if (double_quant && (!quantization || quantization->type == QuantType::kInt8))
    throw InputError("--double-quant: of --quantize nf4 and fp4, expected one of them with it");
  return quantization;
}

std::optional<Quantization> parse_quantization(const ConfigReader& settings) {
  if (settings.find(kQuantizationKey) == nullptr || stored_packed(settings)) return {};
  if (!settings.find(kQuantizationKey)->is_object()) settings.refuse(kQuantizationKey, "null or an object");
  const ConfigReader reader = settings.inner(kQuantizationKey);
  const bool four = reader.flag("load_in_4bit", false), eight = reader.flag("load_in_8bit", false);
  if (reader.text("quant_method").value_or("bitsandbytes") != "bitsandbytes" || four == eight) {
    settings.refuse(
        kQuantizationKey,
        "null, MXFP4 or FP8 (quant_method mxfp4, fp8), or bitsandbytes' with one of load_in_4bit and "
        "load_in_8bit true: of a model in another format take the files that are not quantised");
  }
  for (const auto& [key, value] : reader.object().items()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end())
      reader.refuse(key, fmt::format("no such key, only {}", fmt::join(kKnown, ", ")));
  }
  if (!contains(kStorages, reader.text("bnb_4bit_quant_storage").value_or("uint8")))
    reader.refuse("bnb_4bit_quant_storage", fmt::format("one of {}", fmt::join(kStorages, ", ")));
  reader.only("llm_int8_has_fp16_weight", false);
  check_compute_dtype(reader);
  check_modules(reader, "llm_int8_skip_modules");
  check_modules(reader, "modules_to_not_convert");
  if (eight) return Quantization{QuantType::kInt8, false};
  const std::string type = reader.text("bnb_4bit_quant_type").value_or("fp4");
  if (type != "nf4" && type != "fp4") reader.refuse("bnb_4bit_quant_type", "nf4 or fp4");
  return Quantization{type == "nf4" ? QuantType::kNf4 : QuantType::kFp4,
                      reader.flag("bnb_4bit_use_double_quant", false)};
}

std::optional<Quantization> read_quantization(const std::filesystem::path& config_json) {
  const std::string where = config_json.string();
  const json document = parse_config_json(read_text_file(config_json), where);
  const ConfigReader file(document, where);
  if (file.find(kQuantizationKey) != nullptr || file.find("text_config") == nullptr)
    return parse_quantization(file);
  return parse_quantization(file.inner("text_config"));
}

std::string quantization_json(const Quantization& quantization, const std::string& compute_dtype) {
  const bool eight = quantization.type == QuantType::kInt8;
  const json config = {{"quant_method", "bitsandbytes"},
                       {"load_in_4bit", !eight},
                       {"load_in_8bit", eight},
                       {"bnb_4bit_quant_type", eight ? "fp4" : quant_type_name(quantization.type)},
                       {"bnb_4bit_use_double_quant", quantization.double_quant},
                       {"bnb_4bit_compute_dtype", compute_dtype},
                       {"bnb_4bit_quant_storage", "uint8"},
                       {"llm_int8_skip_modules", nullptr},
                       {"llm_int8_threshold", 6.0},
                       {"llm_int8_has_fp16_weight", false},
                       {"llm_int8_enable_fp32_cpu_offload", false}};
  return config.dump();
}

std::string quantization_note(const Quantization& quantization) {
  const std::string weights = fmt::format(
      "its linear weights are {}: frozen, and dequantised to the dtype of the passes layer by layer",
      quant_type_name(quantization.type));
  if (quantization.type != QuantType::kInt8) return weights;
  return weights +
         "; activations are not quantised, so llm_int8_threshold, which says which of them LLM.int8() leaves "
         "out, has no part";
}

bool is_quantizable(const ParameterShape& parameter, const Quantization& quantization) {
  if (!quantization.experts && parameter.name.find(".experts.") != std::string::npos) return false;
  return parameter.role == ParameterRole::kWeight && parameter.name.starts_with("model.layers.") &&
         !parameter.name.ends_with(".gate.weight") && !parameter.name.ends_with(".router.weight") &&
         !parameter.name.ends_with(".router.proj.weight");
}

QuantState parse_quant_state(std::string_view text, const std::string& where, QuantType type,
                             const std::vector<int64_t>& shape) {
  const json document = parse_strict_json(text, where);
  const ConfigReader reader(document, where);
  for (const auto& [key, value] : document.items()) {
    static constexpr std::array<const char*, 7> kKeys = {
        "quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset"};
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      reader.refuse(key, fmt::format("no such key, only {}", fmt::join(kKeys, ", ")));
  }
  if (reader.text("quant_type") != quant_type_name(type)) reader.refuse("quant_type", quant_type_name(type));
  QuantState state{.type = type, .dtype = reader.text("dtype").value_or(""), .shape = shape};
  if (!is_dtype(state.dtype)) reader.refuse("dtype", "one of float32, bfloat16, float16");
  const auto block_size = [&](const char* key) {
    const int64_t size = reader.size(key, kBlockSizes.back());
    if (std::find(kBlockSizes.begin(), kBlockSizes.end(), size) == kBlockSizes.end())
      reader.refuse(key, fmt::format("one of {}", fmt::join(kBlockSizes, ", ")));
    return size;
  };
  state.blocksize = block_size("blocksize");
  const json* const stored = reader.find("shape");
  if (stored == nullptr || *stored != json(shape)) reader.refuse("shape", shown(shape));
  state.nested = reader.has("nested_offset") || reader.has("nested_blocksize");
  if (!state.nested) return state;
  if (reader.find("nested_offset") == nullptr) reader.refuse("nested_offset", "a number");
  state.nested_offset = *reader.number("nested_offset");
  state.nested_blocksize = block_size("nested_blocksize");
  if (reader.text("nested_dtype") != "float32") reader.refuse("nested_dtype", "float32");
  return state;
}

std::string quant_state_json(const QuantState& state) {
  nlohmann::ordered_json json{{"quant_type", quant_type_name(state.type)},
                              {"blocksize", state.blocksize},
                              {"dtype", state.dtype},
                              {"shape", state.shape}};
  if (state.nested) {
    json["nested_blocksize"] = state.nested_blocksize;
    json["nested_dtype"] = "float32";
    json["nested_offset"] = state.nested_offset;
  }
  return json.dump();
}

QuantizedNames::QuantizedNames(const std::string& name)
    : absmax(name + ".absmax"),
      quant_map(name + ".quant_map"),
      nested_absmax(name + ".nested_absmax"),
      nested_quant_map(name + ".nested_quant_map"),
      state(name + ".quant_state"),
      row_maxima(module_of(name) + ".SCB"),
      weight_format(module_of(name) + ".weight_format") {}

std::string QuantizedNames::stored_state(QuantType type) const {
  return fmt::format("{}.bitsandbytes__{}", state, quant_type_name(type));
}

QuantState read_quant_state(const StoredTensor& stored, QuantType type, const std::vector<int64_t>& shape) {
  const std::string where = fmt::format("{}: tensor {}", stored.file.path().string(), shown(stored.name));
  const SafetensorsEntry& entry = stored.entry();
  if (entry.dtype != "U8" || entry.shape.size() != 1 || entry.end - entry.begin > kMaxStateBytes)
    throw InputError("{} is {} {}, expected U8 [bytes], {} of them at most", where, entry.dtype,
                     shown(entry.shape), kMaxStateBytes);
  std::string text(entry.end - entry.begin, '\0');
  stored.read(0, std::as_writable_bytes(std::span(text)));
  return parse_quant_state(text, where, type, shape);
}

std::map<std::string, StoredTensor> quantized_entries(const ParameterShape& parameter,
                                                      const Quantization& quantization,
                                                      const std::map<std::string, StoredTensor>& tensors) {
  const auto packed = tensors.find(parameter.name);
  const std::string& dtype = packed->second.entry().dtype;
  const QuantizedNames names(parameter.name);
  const bool is_packed =
      dtype == "U8" || dtype == "I8" || tensors.contains(names.stored_state(quantization.type));
  if (parameter.shape.size() != 2 || !is_packed) return {};
  StoredParts entries(packed->second, tensors);
  if (quantization.type == QuantType::kInt8) {
    take_int8(parameter, names, entries);
    return entries.release();
  }
  take_4bit(parameter, quantization.type, names, entries);
  std::map<std::string, StoredTensor> taken = entries.release();
  taken.emplace(names.state, taken.at(names.stored_state(quantization.type)));
  return taken;
}

}  // namespace streambp
