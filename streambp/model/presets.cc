// Architectures by name. Each is turned into a config.json and parsed, so that a preset is subject to every
// check of a file.
#include <cstdint>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/config.h"
#include "streambp/model/presets_longrope.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

struct Preset {
  const char* name;
  const char* family;
  int64_t vocab, hidden, layers, heads, key_value_heads, head_dim, intermediate, positions;
  double eps, theta;
  bool tied;
  const char* dtype;
  const char* more = "{}";  // the keys of config.json beyond these
};

constexpr const char* kB16 = "bfloat16";
constexpr const char* kF32 = "float32";
constexpr const char* kF64 = "float64";

// clang-format off
constexpr const char* kLlama31 = R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";
constexpr const char* kLlama32 = R"({"rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";
constexpr const char* kLlamaTiny = R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 32}})";
constexpr const char* kLlamaYarnTiny = R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
  "original_max_position_embeddings": 32}})";
constexpr const char* kLlamaDynamicTiny = R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})";

constexpr const char* kGemma2B = R"({"query_pre_attn_scalar": 256, "sliding_window": 4096})";
constexpr const char* kGemma2Big = R"({"query_pre_attn_scalar": 144, "sliding_window": 4096})";
constexpr const char* kGemma2Tiny = R"({"query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 2.0,
  "final_logit_softcapping": 3.0})";
constexpr const char* kGemma3Small = R"({"sliding_window": 512, "rope_local_base_freq": 10000})";
constexpr const char* kGemma3 = R"({"sliding_window": 1024, "rope_local_base_freq": 10000,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
constexpr const char* kGemma3Big = R"({"sliding_window": 1024, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 168,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
constexpr const char* kGemma3Cpu = R"({"sliding_window": 512, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 64})";
constexpr const char* kGemma3Tiny = R"({"sliding_window": 5, "sliding_window_pattern": 3, "rope_local_base_freq": 100,
  "query_pre_attn_scalar": 24, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";

constexpr const char* kNoWindow = R"({"sliding_window": null})";
constexpr const char* kWindow7 = R"({"sliding_window": 7})";
constexpr const char* kWindow1024 = R"({"sliding_window": 1024})";
constexpr const char* kWindow2047 = R"({"sliding_window": 2047})";
constexpr const char* kWindow4096 = R"({"sliding_window": 4096})";
constexpr const char* kQwen2WindowTiny = R"({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1})";
constexpr const char* kPhi3Tiny = R"({"sliding_window": 9, "partial_rotary_factor": 0.5,
  "original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope",
  "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0, 8.0]}})";

constexpr const char* kQwen3Moe30 = R"({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
  "norm_topk_prob": true})";
constexpr const char* kQwen3Moe235 = R"({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
  "norm_topk_prob": true})";
constexpr const char* kQwen3MoeCpu = R"({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768,
  "norm_topk_prob": true})";
constexpr const char* kQwen3MoeTiny = R"({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "norm_topk_prob": true, "mlp_only_layers": [1], "output_router_logits": true, "router_aux_loss_coef": 0.3})";
constexpr const char* kQwen3MoePlainTiny = R"({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "norm_topk_prob": false})";

// The published rows are the config.json of Qwen/Qwen3-*, Qwen/Qwen2.5-* (the base models), meta-llama/Llama-3.1-*,
// meta-llama/Llama-3.2-*, meta-llama/Meta-Llama-3-8B, google/gemma-2-*, google/gemma-3-*-pt (from 4b on the text
// part), mistralai/Mistral-7B-v0.1 and -v0.3, and microsoft/Phi-* on the Hugging Face hub.
constexpr Preset kPresets[] = {
  // name             family        vocab   hidden L   H  K    E    mlp  positions eps theta tied  dtype, more
  {"qwen3-0.6b",      "qwen3",      151936, 1024, 28, 16, 8, 128,  3072,  40960, 1e-6, 1e6, true,  kB16},
  {"qwen3-1.7b",      "qwen3",      151936, 2048, 28, 16, 8, 128,  6144,  40960, 1e-6, 1e6, true,  kB16},
  {"qwen3-4b",        "qwen3",      151936, 2560, 36, 32, 8, 128,  9728,  40960, 1e-6, 1e6, true,  kB16},
  {"qwen3-8b",        "qwen3",      151936, 4096, 36, 32, 8, 128, 12288,  40960, 1e-6, 1e6, false, kB16},
  {"qwen3-14b",       "qwen3",      151936, 5120, 40, 40, 8, 128, 17408,  40960, 1e-6, 1e6, false, kB16},
  {"qwen3-32b",       "qwen3",      151936, 5120, 64, 64, 8, 128, 25600,  40960, 1e-6, 1e6, false, kB16},
  {"qwen3-30b-a3b",   "qwen3_moe",  151936, 2048, 48, 32, 4, 128,  6144,  40960, 1e-6, 1e6, false, kB16, kQwen3Moe30},
  {"qwen3-235b-a22b", "qwen3_moe",  151936, 4096, 94, 64, 4, 128, 12288,  40960, 1e-6, 1e6, false, kB16, kQwen3Moe235},
  {"qwen2.5-0.5b",    "qwen2",      151936,  896, 24, 14, 2,  64,  4864,  32768, 1e-6, 1e6, true,  kB16},
  {"qwen2.5-1.5b",    "qwen2",      151936, 1536, 28, 12, 2, 128,  8960, 131072, 1e-6, 1e6, true,  kB16},
  {"qwen2.5-3b",      "qwen2",      151936, 2048, 36, 16, 2, 128, 11008,  32768, 1e-6, 1e6, true,  kB16},
  {"qwen2.5-7b",      "qwen2",      152064, 3584, 28, 28, 4, 128, 18944, 131072, 1e-6, 1e6, false, kB16},
  {"qwen2.5-14b",     "qwen2",      152064, 5120, 48, 40, 8, 128, 13824, 131072, 1e-5, 1e6, false, kB16},
  {"qwen2.5-32b",     "qwen2",      152064, 5120, 64, 40, 8, 128, 27648, 131072, 1e-5, 1e6, false, kB16},
  {"qwen2.5-72b",     "qwen2",      152064, 8192, 80, 64, 8, 128, 29568, 131072, 1e-5, 1e6, false, kB16},
  {"llama-3-8b",      "llama",      128256, 4096, 32, 32, 8, 128, 14336,   8192, 1e-5, 5e5, false, kB16},
  {"llama-3.1-8b",    "llama",      128256, 4096, 32, 32, 8, 128, 14336, 131072, 1e-5, 5e5, false, kB16, kLlama31},
  {"llama-3.1-70b",   "llama",      128256, 8192, 80, 64, 8, 128, 28672, 131072, 1e-5, 5e5, false, kB16, kLlama31},
  {"llama-3.2-1b",    "llama",      128256, 2048, 16, 32, 8,  64,  8192, 131072, 1e-5, 5e5, true,  kB16, kLlama32},
  {"llama-3.2-3b",    "llama",      128256, 3072, 28, 24, 8, 128,  8192, 131072, 1e-5, 5e5, true,  kB16, kLlama32},
  {"gemma-2-2b",      "gemma2",     256000, 2304, 26,  8, 4, 256,  9216,   8192, 1e-6, 1e4, true,  kB16, kGemma2B},
  {"gemma-2-9b",      "gemma2",     256000, 3584, 42, 16, 8, 256, 14336,   8192, 1e-6, 1e4, true,  kB16, kGemma2B},
  {"gemma-2-27b",     "gemma2",     256000, 4608, 46, 32, 16, 128, 36864,  8192, 1e-6, 1e4, true,  kB16, kGemma2Big},
  {"gemma-3-1b",      "gemma3_text", 262144, 1152, 26, 4, 1, 256,  6912,  32768, 1e-6, 1e6, true,  kB16, kGemma3Small},
  {"gemma-3-4b",      "gemma3_text", 262208, 2560, 34, 8, 4, 256, 10240, 131072, 1e-6, 1e6, true,  kB16, kGemma3},
  {"gemma-3-12b",     "gemma3_text", 262208, 3840, 48, 16, 8, 256, 15360, 131072, 1e-6, 1e6, true, kB16, kGemma3},
  {"gemma-3-27b",     "gemma3_text", 262208, 5376, 62, 32, 16, 128, 21504, 131072, 1e-6, 1e6, true, kB16, kGemma3Big},
  {"mistral-7b-v0.1", "mistral",     32000, 4096, 32, 32, 8, 128, 14336,  32768, 1e-5, 1e4, false, kB16, kWindow4096},
  {"mistral-7b",      "mistral",     32768, 4096, 32, 32, 8, 128, 14336,  32768, 1e-5, 1e6, false, kB16, kNoWindow},
  {"phi-3-mini-4k",   "phi3",        32064, 3072, 32, 32, 32, 96,  8192,   4096, 1e-5, 1e4, false, kB16, kWindow2047},
  {"phi-3.5-mini",    "phi3",        32064, 3072, 32, 32, 32, 96,  8192, 131072, 1e-5, 1e4, false, kB16, kPhi35MiniRope},
  {"phi-4-mini",      "phi3",       200064, 3072, 32, 24, 8, 128,  8192, 131072, 1e-5, 1e4, true,  kB16, kPhi4MiniRope},
  // Small enough to measure on two cores.
  {"qwen3-cpu",       "qwen3",       32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32},
  {"qwen2-cpu",       "qwen2",       32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32},
  {"llama-cpu",       "llama",       32000,  512,  4,  8, 4,  64,  1536, 131072, 1e-5, 5e5, false, kF32, kLlama31},
  {"gemma3-cpu",      "gemma3_text", 32000,  512,  6,  8, 4,  64,  1536,  32768, 1e-6, 1e6, true,  kF32, kGemma3Cpu},
  {"mistral-cpu",     "mistral",     32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-5, 1e6, false, kF32, kWindow1024},
  {"qwen3-moe-cpu",   "qwen3_moe",   32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32, kQwen3MoeCpu},
  // For tests: sizes that differ from each other, and windows and scaling that start within a few dozen tokens.
  {"qwen3-tiny",      "qwen3",         101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64},
  {"qwen2-tiny",      "qwen2",         101,   32,  3,  4, 2,   8,    44,    512, 1e-6, 1e4, false, kF64},
  {"llama-tiny",      "llama",         101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 500, false, kF64, kLlamaTiny},
  {"llama-tied-tiny", "llama",         101,   32,  3,  4, 1,   8,    44,    512, 1e-5, 500, true,  kF64, kLlamaTiny},
  {"llama-yarn-tiny", "llama",         101,   32,  2,  4, 2,   8,    44,    128, 1e-5, 500, false, kF64, kLlamaYarnTiny},
  {"llama-dynamic-tiny", "llama",      101,   32,  2,  4, 2,   8,    44,     16, 1e-5, 500, false, kF64, kLlamaDynamicTiny},
  {"gemma2-tiny",     "gemma2",        101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, true,  kF64, kGemma2Tiny},
  {"gemma3-tiny",     "gemma3_text",   101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, true,  kF64, kGemma3Tiny},
  {"mistral-tiny",    "mistral",       101,   32,  2,  4, 2,  16,    44,    512, 1e-5, 1e4, false, kF64, kWindow7},
  {"phi3-tiny",       "phi3",          101,   32,  2,  2, 1,  16,    44,    512, 1e-5, 1e4, false, kF64, kPhi3Tiny},
  {"qwen2-window-tiny", "qwen2",       101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen2WindowTiny},
  {"qwen3-moe-tiny",  "qwen3_moe",     101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen3MoeTiny},
  {"qwen3-moe-plain-tiny", "qwen3_moe", 101,  32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen3MoePlainTiny},
};
// clang-format on

const Preset* find(const std::string& name) {
  for (const Preset& row : kPresets) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

std::string preset_json(const std::string& name) {
  const Preset* const row = find(name);
  if (row == nullptr)
    throw InputError("no preset {}, expected one of {}", shown(name), fmt::join(preset_names(), ", "));
  json config = {{"model_type", row->family},
                 {"vocab_size", row->vocab},
                 {"hidden_size", row->hidden},
                 {"intermediate_size", row->intermediate},
                 {"num_hidden_layers", row->layers},
                 {"num_attention_heads", row->heads},
                 {"num_key_value_heads", row->key_value_heads},
                 {"head_dim", row->head_dim},
                 {"max_position_embeddings", row->positions},
                 {"rms_norm_eps", row->eps},
                 {"tie_word_embeddings", row->tied},
                 {"rope_theta", row->theta},
                 {"pad_token_id", nullptr},
                 {"torch_dtype", row->dtype}};
  config.update(json::parse(row->more));
  return config.dump();
}

Config preset(const std::string& name) {
  return parse_config(preset_json(name), "preset " + name);
}

bool is_preset(const std::string& name) {
  return find(name) != nullptr;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& row : kPresets) names.emplace_back(row.name);
  return names;
}

}  // namespace streambp
