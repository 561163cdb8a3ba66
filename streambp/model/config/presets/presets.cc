// Architectures by name. Each is turned into a config.json and parsed, so that a preset is subject to every
// check of a file.
#include <algorithm>
#include <cstdint>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/config/presets/presets_gemma.h"
#include "streambp/model/config/presets/presets_longrope.h"
#include "streambp/model/config/presets/presets_mixtures.h"
#include "streambp/model/config/presets/presets_recurrent.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

struct Preset {
  const char* name;
  const char* family;
  int64_t vocab, hidden, layers, heads, key_value_heads;
  int64_t head_dim;  // 0: `more` has other sizes
  int64_t intermediate, positions;
  double eps, theta;  // theta 0: `more` or the family's default has it
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
constexpr const char* kLlamaYarnTiny = R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}})";
constexpr const char* kLlamaDynamicTiny = R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})";

constexpr const char* kSmollm3Tiny = R"({"no_rope_layers": [1, 0, 1], "use_sliding_window": true, "sliding_window": 6,
  "mlp_bias": true})";
constexpr const char* kGranite2B = R"({"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625,
  "logits_scaling": 8.0})";
constexpr const char* kGranite8B = R"({"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125,
  "logits_scaling": 16.0})";
constexpr const char* kGraniteTiny = R"({"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.35,
  "logits_scaling": 0.3, "attention_bias": true, "mlp_bias": true})";
constexpr const char* kOlmo3 = R"({"sliding_window": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 8.0,
  "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2079441541679836}})";
constexpr const char* kOlmo3Tiny = R"({"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention",
  "sliding_attention"], "rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
  "original_max_position_embeddings": 32}, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}})";
constexpr const char* kMinistral3 = R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
  "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
  "llama_4_scaling_beta": 0.1}})";
constexpr const char* kMinistral3Tiny = R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0,
  "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.3}})";
constexpr const char* kGlm4 = R"({"partial_rotary_factor": 0.5, "attention_bias": true})";

constexpr const char* kCommandR = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.0625})";
constexpr const char* kCommandRPlus = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.8333333333333334, "use_qk_norm": true})";
constexpr const char* kCommandA = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.25, "sliding_window": 4096, "sliding_window_pattern": 4})";
constexpr const char* kCohereTiny = R"({"layer_norm_eps": 1e-5, "logit_scale": 1.7, "attention_bias": true, "use_qk_norm": true})";
constexpr const char* kCohere2Tiny = R"({"layer_norm_eps": 1e-5, "logit_scale": 0.6, "sliding_window": 5, "sliding_window_pattern": 2})";
constexpr const char* kGptOss20 = R"({"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": true,
  "router_aux_loss_coef": 0.9, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
  "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}, "swiglu_limit": 7.0})";
constexpr const char* kGptOss120 = R"({"num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
  "attention_bias": true, "router_aux_loss_coef": 0.9, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
  "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}, "swiglu_limit": 7.0})";
constexpr const char* kGptOssTiny = R"({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "attention_bias": true,
  "output_router_logits": true, "router_aux_loss_coef": 0.3, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
  "original_max_position_embeddings": 32, "truncate": false}, "swiglu_alpha": 1.3, "swiglu_limit": 1.2})";
constexpr const char* kNoWindow = R"({"sliding_window": null})";
constexpr const char* kWindow7 = R"({"sliding_window": 7})";
constexpr const char* kWindow1024 = R"({"sliding_window": 1024})";
constexpr const char* kWindow2047 = R"({"sliding_window": 2047})";
constexpr const char* kWindow4096 = R"({"sliding_window": 4096})";
constexpr const char* kQwen2WindowTiny = R"({"use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1})";
constexpr const char* kPhi3Tiny = R"({"sliding_window": 9, "partial_rotary_factor": 0.5,
  "original_max_position_embeddings": 16, "rope_scaling": {"type": "longrope",
  "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0, 8.0]}})";

constexpr const char* kSeedOss = R"({"attention_bias": true, "attention_dropout": 0.0, "residual_dropout": 0.0})";
constexpr const char* kSeedOssTiny = R"({"attention_bias": true, "attention_out_bias": true, "mlp_bias": true,
  "attention_dropout": 0.0, "residual_dropout": 0.0})";
constexpr const char* kErnie45Tiny = R"({"use_bias": true, "hidden_act": "relu"})";
constexpr const char* kMuseGlimmerTiny = R"({"sliding_window": 5, "post_norm_eps": 1e-3, "final_logit_softcapping": 3.0,
  "output_multiplier": 0.7, "attention_bias": true})";
constexpr const char* kHeliumTiny = R"({"attention_bias": true, "mlp_bias": true, "hidden_act": "gelu"})";
constexpr const char* kExaone4Small = R"({"sliding_window": null, "rope_scaling": {"rope_type": "llama3",
  "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";
constexpr const char* kExaone4 = R"({"sliding_window": 4096, "sliding_window_pattern": 4, "rope_scaling": {"rope_type": "llama3",
  "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";
constexpr const char* kHunyuan = R"({"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}})";
constexpr const char* kExaone4Tiny = R"({"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention",
  "sliding_attention"]})";

// The published rows are the config.json of Qwen/Qwen3-*, Qwen/Qwen2.5-* (the base models), meta-llama/Llama-3.1-*,
// meta-llama/Llama-3.2-*, meta-llama/Meta-Llama-3-8B, google/gemma-2-*, google/gemma-3-*-pt (from 4b on the text
// part), mistralai/Mistral-7B-v0.1 and -v0.3, microsoft/Phi-*, google/gemma-2b and -7b, HuggingFaceTB/SmolLM3-3B,
// ibm-granite/granite-3.3-*-instruct, allenai/OLMo-2-1124-7B and Olmo-3-1025-7B, mistralai/Ministral-3-8B-* (text part),
// THUDM/GLM-4-9B-0414, google/gemma-4-* (text part), mistralai/Mixtral-8x7B-v0.1, openai/gpt-oss-*, Qwen/Qwen1.5-MoE-A2.7B, Qwen/Qwen3.5-* (text
// part), Qwen/Qwen3-Next-80B-A3B-*, Qwen/Qwen4-Exp (text part), deepseek-ai/DeepSeek-V3, moonshotai/Kimi-K2-* (whose model_type is another),
// zai-org/GLM-4.5-Air, ByteDance-Seed/Seed-OSS-36B-* (without its dropout), baidu/ERNIE-4.5-0.3B-PT
// and -21B-A3B-PT, ibm-granite/granite-3.1-3b-a800m-base,
// kyutai/helium-1-preview-2b, LGAI-EXAONE/EXAONE-4.0-*, tencent/Hunyuan-7B-*, zai-org/GLM-4.7, stepfun-ai/Step-3.7-Flash (text part), MiniMaxAI/MiniMax-M2 and allenai/Olmo-3.1-32B-* on the Hugging Face hub.
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
  {"gemma-4-e2b",     "gemma4_text", 262144, 1536, 35,  8, 1, 256,  6144, 131072, 1e-6, 0,   true,  kB16, kGemma4E2B},
  {"gemma-4-e4b",     "gemma4_text", 262144, 2560, 42,  8, 2, 256, 10240, 131072, 1e-6, 0,   true,  kB16, kGemma4E4B},
  {"gemma-4-31b",     "gemma4_text", 262144, 5376, 60, 32, 16, 256, 21504, 262144, 1e-6, 0,  true,  kB16, kGemma431B},
  {"gemma-4-26b-a4b", "gemma4_text", 262144, 2816, 30, 16, 8, 256,  2112, 262144, 1e-6, 0,   true,  kB16, kGemma426B},
  {"mistral-7b-v0.1", "mistral",     32000, 4096, 32, 32, 8, 128, 14336,  32768, 1e-5, 1e4, false, kB16, kWindow4096},
  {"mistral-7b",      "mistral",     32768, 4096, 32, 32, 8, 128, 14336,  32768, 1e-5, 1e6, false, kB16, kNoWindow},
  {"phi-3-mini-4k",   "phi3",        32064, 3072, 32, 32, 32, 96,  8192,   4096, 1e-5, 1e4, false, kB16, kWindow2047},
  {"phi-3.5-mini",    "phi3",        32064, 3072, 32, 32, 32, 96,  8192, 131072, 1e-5, 1e4, false, kB16, kPhi35MiniRope},
  {"phi-4-mini",      "phi3",       200064, 3072, 32, 24, 8, 128,  8192, 131072, 1e-5, 1e4, true,  kB16, kPhi4MiniRope},
  {"gemma-2b",        "gemma",      256000, 2048, 18,  8, 1, 256, 16384,   8192, 1e-6, 1e4, true,  kB16},
  {"gemma-7b",        "gemma",      256000, 3072, 28, 16, 16, 256, 24576,  8192, 1e-6, 1e4, true,  kB16},
  {"smollm3-3b",      "smollm3",    128256, 2048, 36, 16, 4, 128, 11008,  65536, 1e-6, 5e6, true,  kB16},
  {"granite-3.3-2b",  "granite",     49159, 2048, 40, 32, 8,  64,  8192, 131072, 1e-5, 1e7, true,  kB16, kGranite2B},
  {"granite-3.3-8b",  "granite",     49159, 4096, 40, 32, 8, 128, 12800, 131072, 1e-5, 1e7, true,  kB16, kGranite8B},
  {"granite-4.0-h-350m", "granitemoehybrid", 100352, 768, 32, 12, 4, 64, 2048, 32768, 1e-5, 1e4, true, kB16, kGraniteHybrid350M},
  {"granite-3.1-3b-a800m", "granitemoe", 49155, 1536, 32, 24, 8, 64, 512, 131072, 1e-6, 1e7, true, kB16, kGraniteMoe3B},
  {"granite-4.0-h-7b", "granitemoehybrid", 100352, 1536, 40, 12, 4, 128, 512, 131072, 1e-5, 1e4, true, kB16, kGraniteHybrid7B},
  {"granite-4.0-h-small", "granitemoehybrid", 100352, 4096, 40, 32, 8, 128, 768, 131072, 1e-5, 1e4, true, kB16, kGraniteHybrid32B},
  {"falcon-h1-0.5b",  "falcon_h1",   32784, 1024, 36,  8, 2,  64,  2048,  16384, 1e-5, 1e11, false, kB16, kFalcon0B},
  {"falcon-h1-7b",    "falcon_h1",  130049, 3072, 44, 12, 2, 128, 12288, 262144, 1e-5, 1e11, false, kB16, kFalcon7B},
  {"bamba-9b",        "bamba",      128256, 4096, 32, 32, 8, 128, 14336, 262144, 1e-5, 1e4, false, kB16, kBamba9B},
  {"olmo2-7b",        "olmo2",      100352, 4096, 32, 32, 32, 128, 11008,  4096, 1e-6, 5e5, false, kB16},
  {"olmo3-7b",        "olmo3",      100278, 4096, 32, 32, 32, 128, 11008, 65536, 1e-6, 5e5, false, kB16, kOlmo3},
  {"olmo3.1-32b",     "olmo3",      100278, 5120, 64, 40, 8, 128, 27648, 65536, 1e-6, 5e5, false, kB16, kOlmo3},
  {"ministral3-8b",   "ministral3", 131072, 4096, 34, 32, 8, 128, 14336, 262144, 1e-5, 1e6, false, kB16, kMinistral3},
  {"glm4-9b",         "glm4",       151552, 4096, 40, 32, 2, 128, 13696,  32768, 1e-5, 1e4, false, kB16, kGlm4},
  {"command-r-35b",   "cohere",     256000, 8192, 40, 64, 64, 128, 22528, 131072, 1e-5, 8e6, true, kB16, kCommandR},
  {"command-r-plus-104b", "cohere", 256000, 12288, 64, 96, 8, 128, 33792, 131072, 1e-5, 7.5e7, true, kB16, kCommandRPlus},
  {"command-r7b",     "cohere2",    256000, 4096, 32, 32, 8, 128, 14336, 132096, 1e-5, 5e4, true,  kB16, kCommandA},
  {"command-a-111b",  "cohere2",    256000, 12288, 64, 96, 8, 128, 36864, 131072, 1e-5, 5e4, true, kB16, kCommandA},
  {"mixtral-8x7b",    "mixtral",     32000, 4096, 32, 32, 8, 128, 14336,  32768, 1e-5, 1e6, false, kB16, kMixtral8x7},
  {"minimax-m2",      "minimax_m2", 200064, 3072, 62, 48, 8, 128,  1536, 196608, 1e-6, 5e6, false, kB16, kMiniMaxM2},
  {"minimax-m3",      "minimax_m3_vl_text", 200064, 6144, 60, 64, 4, 128, 3072, 1048576, 1e-6, 5e6, false, kB16, kMiniMaxM3},
  {"muse-glimmer-30b", "muse_glimmer_text", 202048, 6656, 52, 32, 2, 128, 19968, 131072, 1e-5, 5e5, false, kB16},
  {"muse-spark-816b-a42b", "muse_spark_text", 202048, 8192, 62, 128, 16, 64, 16384, 1048576, 1e-5, 0, false, kB16},
  {"gpt-oss-20b",     "gpt_oss",    201088, 2880, 24, 64, 8,  64,  2880, 131072, 1e-5, 1.5e5, false, kB16, kGptOss20},
  {"gpt-oss-120b",    "gpt_oss",    201088, 2880, 36, 64, 8,  64,  2880, 131072, 1e-5, 1.5e5, false, kB16, kGptOss120},
  {"qwen1.5-moe-a2.7b", "qwen2_moe", 151936, 2048, 24, 16, 16, 128, 5632,  8192, 1e-6, 1e6, false, kB16, kQwen15Moe},
  {"qwen3.5-0.8b",    "qwen3_5_text", 248320, 1024, 24,  8, 2, 256,  3584, 262144, 1e-6, 1e7, true,  kB16, kQwen35Small},
  {"qwen3.5-2b",      "qwen3_5_text", 248320, 2048, 24,  8, 2, 256,  6144, 262144, 1e-6, 1e7, true,  kB16, kQwen35Small},
  {"qwen3.5-4b",      "qwen3_5_text", 248320, 2560, 32, 16, 4, 256,  9216, 262144, 1e-6, 1e7, true,  kB16},
  {"qwen3.5-9b",      "qwen3_5_text", 248320, 4096, 32, 16, 4, 256, 12288, 262144, 1e-6, 1e7, false, kB16},
  {"qwen3.5-27b",     "qwen3_5_text", 248320, 5120, 64, 24, 4, 256, 17408, 262144, 1e-6, 1e7, false, kB16, kQwen3527B},
  {"qwen3.5-35b-a3b", "qwen3_5_moe_text", 248320, 2048, 40, 16, 2, 256, 512, 262144, 1e-6, 1e7, false, kB16, kQwen35Moe35},
  {"qwen3-next-80b-a3b", "qwen3_next", 151936, 2048, 48, 16, 2, 256, 5120, 262144, 1e-6, 1e7, false, kB16, kQwen3Next},
  {"qwen4-exp",       "qwen4_exp_text", 248320, 2560, 48, 24, 2, 256, 640, 262144, 1e-6, 1e7, false, kB16, kQwen4Exp},
  {"lfm2-350m",       "lfm2",        65536, 1024, 16, 16, 8,  64,  6656, 128000, 1e-5, 1e6, true,  kB16, kLfm2},
  {"lfm2-1.2b",       "lfm2",        65536, 2048, 16, 32, 8,  64, 12288, 128000, 1e-5, 1e6, true,  kB16, kLfm2},
  {"lfm2-8b-a1b",     "lfm2_moe",    65536, 2048, 24, 32, 8,  64,  7168, 128000, 1e-5, 1e6, true,  kB16, kLfm2Moe8B},
  {"lfm3-1.7b",       "lfm3",       128000, 2048, 24, 16, 4, 128,  7680, 128000, 1e-5, 0,   true,  kB16},
  {"nemotron-h-8b",   "nemotron_h", 131072, 4096, 52, 32, 8, 128, 21504,   8192, 1e-5, 0,   false, kB16, kNemotronH8},
  {"nemotron-3-nano-30b-a3b", "nemotron_h", 131072, 2688, 52, 32, 2, 128, 1856, 262144, 1e-5, 0, false, kB16, kNemotron3Nano},
  {"nemotron-3-super-120b-a12b", "nemotron_h", 131072, 4096, 88, 32, 2, 128, 2688, 262144, 1e-5, 0, false, kB16, kNemotron3Super},
  {"deepseek-v3",     "deepseek_v3", 129280, 7168, 61, 128, 128, 0, 18432, 163840, 1e-6, 1e4, false, kB16, kDeepseekV3},
  {"deepseek-v3.2-exp", "deepseek_v32", 129280, 7168, 61, 128, 128, 0, 18432, 163840, 1e-6, 1e4, false, kB16, kDeepseekV32},
  {"deepseek-v4-flash", "deepseek_v4", 129280, 4096, 43, 64, 1, 512, 2048, 1048576, 1e-6, 1e4, false, kB16, kDeepseekV4Flash},
  {"mistral-small-4", "mistral4",   131072, 4096, 36, 32, 32,  0, 12288, 1048576, 1e-6, 1e4, false, kB16, kMistralSmall4},
  {"mistral-large-4", "mistral_large4_text", 204800, 6144, 72, 64, 64, 0, 24576, 1048576, 1e-5, 0, false, kB16, kMistralLarge4},
  {"glm-5",           "glm_moe_dsa", 154880, 6144, 78, 64, 64, 0, 12288, 202752, 1e-5, 1e6, false, kB16, kGlm5},
  {"glm-5.3-flash",   "glm5_next_text", 154880, 4096, 45, 64, 64, 0, 12288, 1048576, 1e-5, 0, false, kB16, kGlm53Flash},
  {"hy4-preview",     "hy_v4",      120832, 2816, 34, 32, 32,  0,  6912, 262144, 1e-5, 1e4, false, kB16, kHy4Preview},
  {"kimi-k2",         "deepseek_v3", 163840, 7168, 61, 64, 64,  0, 18432, 131072, 1e-6, 5e4, false, kB16, kKimiK2},
  {"kimi-linear-48b-a3b", "kimi_linear", 163840, 2304, 27, 32, 32, 0, 9216, 1048576, 1e-5, 0, false, kB16, kKimiLinear48B},
  {"glm-4.5-air",     "glm4_moe",   151552, 4096, 46, 96, 8, 128, 10944, 131072, 1e-5, 1e6, false, kB16, kGlm45Air},
  {"glm-4.7-flash",   "glm4_moe_lite", 154880, 2048, 47, 20, 20, 0, 10240, 202752, 1e-5, 1e6, false, kB16, kGlm47Flash},
  {"glm-4.7",         "glm4_moe",   151552, 5120, 92, 96, 8, 128, 12288, 202752, 1e-5, 1e6, false, kB16, kGlm47},
  {"step-3.7-flash",  "step3p5",    128896, 4096, 45, 64, 8, 128, 11264, 262144, 1e-5, 0,   false, kB16, kStep37Flash},
  {"seed-oss-36b",    "seed_oss",   155136, 5120, 64, 80, 8, 128, 27648, 524288, 1e-6, 1e7, false, kB16, kSeedOss},
  {"ernie-4.5-0.3b",  "ernie4_5",   103424, 1024, 18, 16, 2, 128,  3072, 131072, 1e-5, 5e5, true,  kB16},
  {"ernie-4.5-21b-a3b", "ernie4_5_moe", 103424, 2560, 28, 20, 4, 128, 12288, 131072, 1e-5, 5e5, true, kB16, kErnie45Moe21},
  {"helium-1-preview-2b", "helium",  48000, 2560, 24, 20, 20, 128, 7040,   4096, 1e-8, 1e5, false, kB16},
  {"hunyuan-7b", "hunyuan_v1_dense", 128167, 4096, 32, 32, 8, 128, 14336, 262144, 1e-5, 1e4, true, kB16, kHunyuan},
  {"exaone-4.0-1.2b", "exaone4",    102400, 2048, 30, 32, 8,  64,  4096,  65536, 1e-5, 1e6, true,  kB16, kExaone4Small},
  {"exaone-4.0-32b",  "exaone4",    102400, 5120, 64, 40, 8, 128, 27392, 131072, 1e-5, 1e6, false, kB16, kExaone4},
  {"zamba2-1.2b",     "zamba2",      32000, 2048, 38, 32, 32,  0,  8192,   4096, 1e-5, 1e4, true,  kB16, kZamba2Small},
  {"zamba2-2.7b",     "zamba2",      32000, 2560, 54, 32, 32,  0, 10240,   4096, 1e-5, 1e4, true,  kB16, kZamba2Middle},
  {"zamba2-7b",       "zamba2",      32000, 3584, 81, 32, 32,  0, 14336,   4096, 1e-5, 1e4, true,  kB16, kZamba2Large},
  // Small enough to measure on two cores.
  {"qwen3-cpu",       "qwen3",       32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32},
  {"qwen2-cpu",       "qwen2",       32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32},
  {"llama-cpu",       "llama",       32000,  512,  4,  8, 4,  64,  1536, 131072, 1e-5, 5e5, false, kF32, kLlama31},
  {"gemma3-cpu",      "gemma3_text", 32000,  512,  6,  8, 4,  64,  1536,  32768, 1e-6, 1e6, true,  kF32, kGemma3Cpu},
  {"gemma4-cpu",      "gemma4_text", 32000,  512,  6,  8, 2,  64,  1536,  32768, 1e-6, 0,   true,  kF32, kGemma4Cpu},
  {"mistral-cpu",     "mistral",     32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-5, 1e6, false, kF32, kWindow1024},
  {"qwen3-moe-cpu",   "qwen3_moe",   32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6, false, kF32, kQwen3MoeCpu},
  {"qwen3.5-cpu",     "qwen3_5_text", 32000, 512,  4,  4, 2, 128,  1536,  32768, 1e-6, 1e6, false, kF32, kQwen35Cpu},
  {"granite-4.0-h-cpu", "granitemoehybrid", 32000, 512, 4, 8, 4, 64, 1536, 32768, 1e-5, 1e4, false, kF32, kGraniteHybridCpu},
  {"falcon-h1-cpu",   "falcon_h1",   32000,  512,  4,  8, 2,  64,  1024,  32768, 1e-5, 1e6, false, kF32, kFalconCpu},
  {"lfm2-cpu",        "lfm2",        32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-5, 1e6, true,  kF32, kLfm2Cpu},
  {"lfm3-cpu",        "lfm3",        32000,  512,  4,  8, 2,  64,  1536,  32768, 1e-5, 0,   true,  kF32},
  {"zamba2-cpu",      "zamba2",      32000,  512,  4,  8, 8,   0,  1536,   4096, 1e-5, 1e4, true,  kF32, kZamba2Cpu},
  // For tests: sizes that differ from each other, and windows and scaling that start within a few dozen tokens.
  {"qwen3-tiny",      "qwen3",         101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64},
  {"qwen2-tiny",      "qwen2",         101,   32,  3,  4, 2,   8,    44,    512, 1e-6, 1e4, false, kF64},
  {"llama-tiny",      "llama",         101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 500, false, kF64, kLlamaTiny},
  {"llama-tied-tiny", "llama",         101,   32,  3,  4, 1,   8,    44,    512, 1e-5, 500, true,  kF64, kLlamaTiny},
  {"llama-yarn-tiny", "llama",         101,   32,  2,  4, 2,   8,    44,    128, 1e-5, 500, false, kF64, kLlamaYarnTiny},
  {"llama-dynamic-tiny", "llama",      101,   32,  2,  4, 2,   8,    44,     16, 1e-5, 500, false, kF64, kLlamaDynamicTiny},
  {"gemma2-tiny",     "gemma2",        101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, true,  kF64, kGemma2Tiny},
  {"gemma3-tiny",     "gemma3_text",   101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, true,  kF64, kGemma3Tiny},
  {"gemma4-tiny",     "gemma4_text",   101,   32,  4,  4, 2,  16,    44,    512, 1e-6, 0,   true,  kF64, kGemma4Tiny},
  {"gemma4-per-layer-tiny", "gemma4_text", 101, 32, 4,  4, 2,  16,    44,    512, 1e-6, 0,   true,  kF64, kGemma4PerLayerTiny},
  {"gemma4-moe-tiny", "gemma4_text",   101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 0,   false, kF64, kGemma4MoeTiny},
  {"mistral-tiny",    "mistral",       101,   32,  2,  4, 2,  16,    44,    512, 1e-5, 1e4, false, kF64, kWindow7},
  {"phi3-tiny",       "phi3",          101,   32,  2,  2, 1,  16,    44,    512, 1e-5, 1e4, false, kF64, kPhi3Tiny},
  {"qwen2-window-tiny", "qwen2",       101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen2WindowTiny},
  {"qwen3-moe-tiny",  "qwen3_moe",     101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen3MoeTiny},
  {"gemma-tiny",      "gemma",         101,   32,  2,  4, 1,  16,    44,    512, 1e-6, 1e4, true,  kF64},
  {"smollm3-tiny",    "smollm3",       101,   32,  3,  4, 2,   8,    44,    512, 1e-6, 1e4, true,  kF64, kSmollm3Tiny},
  {"granite-tiny",    "granite",       101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 1e4, true,  kF64, kGraniteTiny},
  {"olmo2-tiny",      "olmo2",         101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64},
  {"olmo3-tiny",      "olmo3",         101,   32,  3,  4, 2,   8,    44,    128, 1e-6, 500, false, kF64, kOlmo3Tiny},
  {"ministral3-tiny", "ministral3",    101,   32,  2,  4, 2,  16,    44,     32, 1e-5, 500, false, kF64, kMinistral3Tiny},
  {"glm4-tiny",       "glm4",          101,   32,  2,  4, 2,  16,    44,    512, 1e-5, 1e4, false, kF64, kGlm4},
  {"cohere-tiny",     "cohere",        101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 1e4, true,  kF64, kCohereTiny},
  {"cohere2-tiny",    "cohere2",       101,   32,  3,  4, 2,   8,    44,    512, 1e-5, 1e4, true,  kF64, kCohere2Tiny},
  {"muse-glimmer-tiny", "muse_glimmer_text", 101, 32, 5, 4, 2, 8,     44,    512, 1e-5, 1e4, false, kF64, kMuseGlimmerTiny},
  {"muse-spark-tiny", "muse_spark_text", 101,  32,  2,  4, 2,   8,    44,    512, 1e-5, 0,   false, kF64, kMuseSparkTiny},
  {"gpt-oss-tiny",    "gpt_oss",       101,   32,  3,  4, 2,  16,    20,    512, 1e-5, 500, false, kF64, kGptOssTiny},
  {"mixtral-tiny",    "mixtral",       101,   32,  2,  4, 2,  16,    20,    512, 1e-5, 1e4, false, kF64, kMixtralTiny},
  {"minimax-m2-tiny", "minimax_m2",    101,   32,  2,  4, 2,  16,    20,    512, 1e-6, 1e4, false, kF64, kMiniMaxM2Tiny},
  {"qwen2-moe-tiny",  "qwen2_moe",     101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen2MoeTiny},
  {"qwen3.5-tiny",    "qwen3_5_text",  101,   32,  3,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen35Tiny},
  {"qwen3-next-tiny", "qwen3_next",    101,   32,  2,  4, 2,   8,    44,    512, 1e-6, 1e4, true,  kF64, kQwen3NextTiny},
  {"qwen3.5-moe-tiny", "qwen3_5_moe_text", 101, 32, 2, 4, 1,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen35MoeTiny},
  {"qwen4-exp-tiny",  "qwen4_exp_text", 101,   32,  4,  4, 2,  16,    20,    512, 1e-2, 1e4, false, kF64, kQwen4ExpTiny},
  {"granite-hybrid-tiny", "granitemoehybrid", 101, 32, 3, 4, 2, 8,    44,    512, 1e-5, 1e4, true,  kF64, kGraniteHybridTiny},
  {"bamba-tiny",      "bamba",         101,   32,  3,  4, 2,   8,    44,    512, 1e-5, 1e4, false, kF64, kBambaTiny},
  {"nemotron-h-tiny", "nemotron_h",    101,   32,  5,  4, 2,   8,    44,    512, 1e-5, 0,   false, kF64, kNemotronHTiny},
  {"lfm2-tiny",       "lfm2",          101,   32,  3,  4, 2,   8,    64,    512, 1e-5, 1e4, true,  kF64, kLfm2Tiny},
  {"granite-hybrid-moe-tiny", "granitemoehybrid", 101, 32, 2, 4, 2, 8, 20, 512, 1e-5, 1e4, true,  kF64, kGraniteHybridMoeTiny},
  {"falcon-h1-tiny",  "falcon_h1",     101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 1e4, false, kF64, kFalconTiny},
  {"lfm2-moe-tiny",   "lfm2_moe",      101,   32,  3,  4, 2,   8,    44,    512, 1e-5, 1e4, true,  kF64, kLfm2MoeTiny},
  {"lfm3-tiny",       "lfm3",          101,   32,  3,  4, 2,   8,    44,    512, 1e-5, 0,   true,  kF64, kLfm3Tiny},
  {"granite-moe-tiny", "granitemoe",   101,   32,  2,  4, 2,   8,    20,    512, 1e-5, 1e4, true,  kF64, kGraniteMoeTiny},
  {"ernie4-5-moe-tiny", "ernie4_5_moe", 101,  32,  2,  4, 2,   8,    44,    512, 1e-5, 1e4, true,  kF64, kErnie45MoeTiny},
  {"deepseek-v3-tiny", "deepseek_v3",  101,   32,  3,  4, 4,   0,    44,    128, 1e-6, 500, false, kF64, kDeepseekV3Tiny},
  {"deepseek-v3-plain-tiny", "deepseek_v3", 101, 32, 2, 3, 3,  0,    44,    512, 1e-5, 1e4, true,  kF64, kDeepseekV3PlainTiny},
  {"deepseek-v32-tiny", "deepseek_v32", 101,   32,  3,  4, 4,   0,    44,    128, 1e-6, 500, false, kF64, kDeepseekV32Tiny},
  {"glm-moe-dsa-tiny", "glm_moe_dsa",  101,   32,  4,  3, 3,   0,    44,    512, 1e-5, 1e4, true,  kF64, kGlmMoeDsaTiny},
  {"hy-v4-tiny",      "hy_v4",         101,   32,  3,  3, 3,   0,    44,    512, 1e-5, 1e4, true,  kF64, kHyV4Tiny},
  {"glm4-moe-lite-tiny", "glm4_moe_lite", 101, 32, 3,  3, 3,   0,    44,    512, 1e-5, 1e4, true,  kF64, kGlm4MoeLiteTiny},
  {"mistral4-tiny",   "mistral4",      101,   32,  3,  3, 3,   0,    44,    128, 1e-5, 500, false, kF64, kMistral4Tiny},
  {"mistral-large4-tiny", "mistral_large4_text", 101, 32, 4, 3, 3, 0,  44,    512, 1e-5, 100, false, kF64, kMistralLarge4Tiny},
  {"minimax-m3-tiny", "minimax_m3_vl_text", 101, 32, 4, 4, 2,   8,     12,    512, 1e-5, 500, false, kF64, kMiniMaxM3Tiny},
  {"deepseek-v4-tiny", "deepseek_v4",  101,   32,  4,  4, 1,  10,    12,    512, 1e-5, 500, false, kF64, kDeepseekV4Tiny},
  {"kimi-linear-tiny", "kimi_linear",  101,   32,  3,  4, 4,   0,    44,    512, 1e-3, 0,   false, kF64, kKimiLinearTiny},
  {"glm5-next-tiny",  "glm5_next_text", 101,   32,  4,  3, 3,   0,    44,    512, 1e-1, 0,   false, kF64, kGlm5NextTiny},
  {"step3p7-tiny",    "step3p5",       101,   32,  4,  4, 2,   8,    44,    512, 1e-5, 0,   false, kF64, kStep37Tiny},
  {"zamba2-tiny",     "zamba2",        101,   32,  4,  4, 4,   0,    44,    512, 1e-2, 1e4, true,  kF64, kZamba2Tiny},
  {"zamba2-plain-tiny", "zamba2",      101,   32,  3,  4, 2,   0,    44,    512, 1e-2, 1e4, true,  kF64, kZamba2PlainTiny},
  {"glm4-moe-tiny",   "glm4_moe",      101,   32,  3,  4, 2,  16,    44,    512, 1e-5, 1e4, false, kF64, kGlm4MoeTiny},
  {"hunyuan-tiny",    "hunyuan_v1_dense", 101, 32, 2,  4, 2,  16,    44,    512, 1e-5, 100, true,  kF64, kHunyuan},
  {"helium-tiny",     "helium",        101,   32,  2,  4, 2,   8,    44,    512, 1e-8, 1e4, false, kF64, kHeliumTiny},
  {"exaone4-tiny",    "exaone4",       101,   32,  3,  4, 2,  16,    44,    512, 1e-5, 1e4, false, kF64, kExaone4Tiny},
  {"seed-oss-tiny",   "seed_oss",      101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kSeedOssTiny},
  {"ernie4-5-tiny",   "ernie4_5",      101,   32,  2,  4, 2,  16,    44,    512, 1e-5, 1e4, true,  kF64, kErnie45Tiny},
  {"qwen3-moe-plain-tiny", "qwen3_moe", 101,  32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4, false, kF64, kQwen3MoePlainTiny},
};
// clang-format on

const Preset* find(const std::string& name) {
  for (const Preset& row : kPresets) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

/// Of "every 5" a list in which each fifth layer sees all tokens and the others have a window; of "first of
/// 5" one in which the first of each five does.
json layer_types(const std::string& every, int64_t layers) {
  const int64_t period = std::stoll(every.substr(every.rfind(' ')));
  const int64_t full = every.starts_with("first") ? 1 : 0;
  json types = json::array();
  for (int64_t layer = 1; layer <= layers; ++layer)
    types.push_back(layer % period == full ? "full_attention" : "sliding_attention");
  return types;
}

}  // namespace

std::string preset_json(const std::string& name) {
  const Preset* const row = find(name);
  if (row == nullptr)
    throw InputError("no preset {}, expected one of {}", shown(name), fmt::join(suggested_presets(), ", "));
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
  if (row->head_dim == 0) config.erase("head_dim");
  if (row->theta == 0.0) config.erase("rope_theta");
  config.update(json::parse(row->more));
  if (config.contains("layer_types") && config["layer_types"].is_string())
    config["layer_types"] = layer_types(config["layer_types"], row->layers);
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

std::vector<std::string> suggested_presets() {
  std::vector<std::string> names = preset_names();
  std::erase_if(names, [](const std::string& name) { return name.ends_with("-tiny"); });
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name.ends_with("-cpu"); });
  return names;
}

}  // namespace streambp
