// Weights that bitsandbytes has stored in 4 or 8 bits: what config.json, and the states next to the tensors,
// say of them. Knows bytes, not tensors: model/quantized.h has the numbers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/model/config/config.h"
#include "streambp/model/files/safetensors.h"

namespace streambp {

class ConfigReader;

/// NormalFloat and 4-bit floats of QLoRA (arXiv 2305.14314), two a byte, in blocks with a maximum each; and
/// the integers of LLM.int8() (arXiv 2208.07339), with a maximum for each row.
enum class QuantType { kNf4, kFp4, kInt8 };

/// nf4, fp4 or int8.
const char* quant_type_name(QuantType type);
/// How a model's weights are quantised.
struct Quantization {
  QuantType type = QuantType::kNf4;
  bool double_quant = false;  // nf4, fp4: the blocks' maxima have 8 bits, in blocks of their own
  /// Experts of a mixture too. bitsandbytes packs torch's Linear modules alone, and transformers 5 holds
  /// experts as parameters of three dimensions, which stay in the model's dtype.
  bool experts = false;

  bool operator==(const Quantization&) const = default;
};

/// `quantization_config` of a config.json: nothing where there is none. Throws InputError naming the file,
/// the key and what is supported for another quant_method, an unknown key, and settings that would store or
/// compute something else: llm_int8_has_fp16_weight, a bnb_4bit_quant_storage of which no file is known.
std::optional<Quantization> read_quantization(const std::filesystem::path& config_json);

/// The same of `settings`, the object that has the key; nothing for what is stored_packed.
std::optional<Quantization> parse_quantization(const ConfigReader& settings);

/// As --quantize calls it: its type, "nf4-experts" where experts are packed too.
std::string quantization_name(const Quantization& quantization);

/// Of the flags --quantize, `type` (none: nothing), and --double-quant. Throws InputError naming the choices,
/// and for double quantisation of what has no blocks.
std::optional<Quantization> parse_quantization(const std::string& type, bool double_quant);

/// The quantization_config that transformers writes for it, as JSON.
std::string quantization_json(const Quantization& quantization, const std::string& compute_dtype);

/// What a reader of the model should know, for stderr.
std::string quantization_note(const Quantization& quantization);

/// Whether a preset's quantisation takes this parameter: matrices of the layers' linear maps, but those of
/// routers and, unless it says so, of experts, which transformers 5 holds outside of linear modules.
bool is_quantizable(const ParameterShape& parameter, const Quantization& quantization);

/// What bitsandbytes keeps as JSON next to a 4-bit tensor.
struct QuantState {
  QuantType type = QuantType::kNf4;
  int64_t blocksize = 64;        // values that share a maximum
  std::string dtype;             // of what was quantised, and of what it stands for
  bool nested = false;           // double quantisation: maxima of 8 bits
  int64_t nested_blocksize = 0;  // maxima that share one of their own
  double nested_offset = 0.0;    // that was taken from the maxima; a float32
  std::vector<int64_t> shape;    // of the weight, [out, in]
};

/// Throws InputError beginning with `where` for what is no JSON object, a key that is missing, unknown or of
/// the wrong kind, a type that is not `type`, a block size that bitsandbytes has not, and a shape that is not
/// `shape`.
QuantState parse_quant_state(std::string_view json, const std::string& where, QuantType type,
                             const std::vector<int64_t>& shape);

/// The JSON that bitsandbytes would write.
std::string quant_state_json(const QuantState& state);

/// Names of the tensors that belong to the quantised parameter `name` (model.layers.0.mlp.up_proj.weight),
/// which is itself the packed values.
struct QuantizedNames {
  explicit QuantizedNames(const std::string& name);
  /// The state as files call it, by its type.
  std::string stored_state(QuantType type) const;

  std::string absmax, quant_map, nested_absmax, nested_quant_map;
  std::string state;                      // JSON as bytes: as quantized_entries calls it, whatever the type
  std::string row_maxima, weight_format;  // int8: SCB, and a byte that is 0
};

/// What stores the quantised `parameter`: each of `tensors` that belongs to it by its name, the state also by
/// QuantizedNames::state, once dtypes and shapes are known to be those that the state implies. Empty for a
/// parameter that is stored as it is.
/// Throws InputError naming file and tensor, the quantity and what was expected.
std::map<std::string, StoredTensor> quantized_entries(const ParameterShape& parameter,
                                                      const Quantization& quantization,
                                                      const std::map<std::string, StoredTensor>& tensors);

/// The state of a 4-bit tensor of `shape`, from its bytes. Throws as parse_quant_state does.
QuantState read_quant_state(const StoredTensor& stored, QuantType type, const std::vector<int64_t>& shape);

}  // namespace streambp
