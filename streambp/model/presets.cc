// Architectures by name. Each is turned into a config.json and parsed, so that a preset is subject to every
// check of a file.
#include <cstdint>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/config.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

struct Preset {
  const char* name;
  const char* family;
  int64_t vocab, hidden, layers, heads, key_value_heads, head_dim, intermediate, positions;
  double eps, theta;
  double llama3_factor;     // 0: no scaling
  int64_t llama3_original;  // positions before scaling
  bool tied;
  const char* dtype;
};

constexpr const char* kB16 = "bfloat16";
constexpr const char* kF32 = "float32";
constexpr const char* kF64 = "float64";

// The published rows are the config.json of Qwen/Qwen3-*, Qwen/Qwen2.5-* (the base models),
// meta-llama/Llama-3.1-*, meta-llama/Llama-3.2-* and meta-llama/Meta-Llama-3-8B on the Hugging Face hub.
// clang-format off
constexpr Preset kPresets[] = {
  // name             family   vocab   hidden L   H  K    E    mlp  positions eps theta  x    of  tied  dtype
  {"qwen3-0.6b",      "qwen3", 151936, 1024, 28, 16, 8, 128,  3072,  40960, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen3-1.7b",      "qwen3", 151936, 2048, 28, 16, 8, 128,  6144,  40960, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen3-4b",        "qwen3", 151936, 2560, 36, 32, 8, 128,  9728,  40960, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen3-8b",        "qwen3", 151936, 4096, 36, 32, 8, 128, 12288,  40960, 1e-6, 1e6,  0,    0, false, kB16},
  {"qwen3-14b",       "qwen3", 151936, 5120, 40, 40, 8, 128, 17408,  40960, 1e-6, 1e6,  0,    0, false, kB16},
  {"qwen3-32b",       "qwen3", 151936, 5120, 64, 64, 8, 128, 25600,  40960, 1e-6, 1e6,  0,    0, false, kB16},
  {"qwen2.5-0.5b",    "qwen2", 151936,  896, 24, 14, 2,  64,  4864,  32768, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen2.5-1.5b",    "qwen2", 151936, 1536, 28, 12, 2, 128,  8960, 131072, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen2.5-3b",      "qwen2", 151936, 2048, 36, 16, 2, 128, 11008,  32768, 1e-6, 1e6,  0,    0, true,  kB16},
  {"qwen2.5-7b",      "qwen2", 152064, 3584, 28, 28, 4, 128, 18944, 131072, 1e-6, 1e6,  0,    0, false, kB16},
  {"qwen2.5-14b",     "qwen2", 152064, 5120, 48, 40, 8, 128, 13824, 131072, 1e-5, 1e6,  0,    0, false, kB16},
  {"qwen2.5-32b",     "qwen2", 152064, 5120, 64, 40, 8, 128, 27648, 131072, 1e-5, 1e6,  0,    0, false, kB16},
  {"qwen2.5-72b",     "qwen2", 152064, 8192, 80, 64, 8, 128, 29568, 131072, 1e-5, 1e6,  0,    0, false, kB16},
  {"llama-3-8b",      "llama", 128256, 4096, 32, 32, 8, 128, 14336,   8192, 1e-5, 5e5,  0,    0, false, kB16},
  {"llama-3.1-8b",    "llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072, 1e-5, 5e5,  8, 8192, false, kB16},
  {"llama-3.1-70b",   "llama", 128256, 8192, 80, 64, 8, 128, 28672, 131072, 1e-5, 5e5,  8, 8192, false, kB16},
  {"llama-3.2-1b",    "llama", 128256, 2048, 16, 32, 8,  64,  8192, 131072, 1e-5, 5e5, 32, 8192, true,  kB16},
  {"llama-3.2-3b",    "llama", 128256, 3072, 28, 24, 8, 128,  8192, 131072, 1e-5, 5e5, 32, 8192, true,  kB16},
  // Small enough to measure on two cores.
  {"qwen3-cpu",       "qwen3",  32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6,  0,    0, false, kF32},
  {"qwen2-cpu",       "qwen2",  32000,  512,  4,  8, 4,  64,  1536,  32768, 1e-6, 1e6,  0,    0, false, kF32},
  {"llama-cpu",       "llama",  32000,  512,  4,  8, 4,  64,  1536, 131072, 1e-5, 5e5,  8, 8192, false, kF32},
  // For tests: sizes that differ from each other, and scaling that starts within a few dozen tokens.
  {"qwen3-tiny",      "qwen3",    101,   32,  2,  4, 2,  16,    44,    512, 1e-6, 1e4,  0,    0, false, kF64},
  {"qwen2-tiny",      "qwen2",    101,   32,  3,  4, 2,   8,    44,    512, 1e-6, 1e4,  0,    0, false, kF64},
  {"llama-tiny",      "llama",    101,   32,  2,  4, 2,   8,    44,    512, 1e-5, 500,  8,   32, false, kF64},
  {"llama-tied-tiny", "llama",    101,   32,  3,  4, 1,   8,    44,    512, 1e-5, 500,  8,   32, true,  kF64},
};
// clang-format on

const Preset* find(const std::string& name) {
  for (const Preset& row : kPresets) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

Config preset(const std::string& name) {
  const Preset* const row = find(name);
  if (row == nullptr)
    throw InputError("no preset {}, expected one of {}", shown(name), fmt::join(preset_names(), ", "));
  json rope = {{"rope_type", "default"}, {"rope_theta", row->theta}};
  if (row->llama3_factor != 0.0) {
    rope.update({{"rope_type", "llama3"},
                 {"factor", row->llama3_factor},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", row->llama3_original}});
  }
  const json config = {{"model_type", row->family},
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
                       {"rope_parameters", rope},
                       {"dtype", row->dtype}};
  return parse_config(config.dump(), "preset " + name);
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
