// Layers with a recurrence instead of attention, as config.json says them: a gated delta rule (transformers,
// configuration_qwen3_5.py and configuration_qwen3_next.py) or Mamba-2's state space
// (configuration_bamba.py, configuration_granitemoehybrid.py, configuration_nemotron_h.py), or a convolution
// (configuration_lfm2.py).
#include <algorithm>
#include <map>
#include <set>

#include "streambp/model/config/family.h"
#include "streambp/model/config/read/config_reader.h"

namespace streambp {
namespace {

using nlohmann::json;

// The numbers of the layers that attend; null: none does.
std::vector<bool> all_but_listed(const ConfigReader& settings, const char* key, int64_t count) {
  std::vector<bool> recurrent(static_cast<std::size_t>(count), true);
  for (const char* other : {"layer_types", "layers_block_type"}) settings.only(other, nullptr);
  const json* const listed = settings.find(key);
  if (listed == nullptr) return recurrent;
  const auto is_layer = [&](const json& index) {
    return index.is_number_unsigned() && index < static_cast<std::uint64_t>(count);
  };
  if (!listed->is_array() || !std::all_of(listed->begin(), listed->end(), is_layer))
    settings.refuse(key, fmt::format("a list of numbers below {}", count));
  for (const json& index : *listed) recurrent[index.get<std::size_t>()] = false;
  return recurrent;
}

// layer_types, or every layer but each full_attention_interval-th; of a state space all.
std::vector<bool> recurrent_layers(const ConfigReader& settings, const Family& family, int64_t count) {
  if (family.state_space && family.state_space->attends != nullptr)
    return all_but_listed(settings, family.state_space->attends, count);
  std::vector<bool> recurrent;
  const json* const types = settings.find("layer_types");
  if (types == nullptr && family.state_space) return std::vector<bool>(static_cast<std::size_t>(count), true);
  if (types == nullptr) {
    const int64_t interval = settings.size("full_attention_interval", kMaxLayers, 4);
    for (int64_t layer = 1; layer <= count; ++layer) recurrent.push_back(layer % interval != 0);
    return recurrent;
  }
  // transformers 4's names of a state space's layers, which 5 reads too.
  const std::set<json> attends = family.state_space ? std::set<json>{"full_attention", "attention"}
                                 : family.qwen4_exp ? std::set<json>{"full_attention", "indexed_attention"}
                                                    : std::set<json>{"full_attention"},
                       recurs = family.state_space ? std::set<json>{"linear_attention", "mamba"}
                                                   : std::set<json>{"linear_attention"};
  bool good = types->is_array() && types->size() == static_cast<std::size_t>(count);
  for (std::size_t i = 0; good && i < types->size(); ++i) {
    recurrent.push_back(recurs.contains((*types)[i]));
    good = recurrent.back() || attends.contains((*types)[i]);
  }
  if (!good)
    settings.refuse("layer_types",
                    fmt::format("{} or linear_attention for each of the {} layers",
                                family.qwen4_exp ? "indexed_attention" : "full_attention", count));
  return recurrent;
}

// LFM2's: layer_types, or those that full_attn_idxs does not name.
std::vector<bool> convolution_layers(const ConfigReader& settings, int64_t count) {
  constexpr const char *kTypes = "layer_types", *kAttends = "full_attn_idxs";
  std::vector<bool> convolutions(static_cast<std::size_t>(count), false);
  if (const json* const types = settings.find(kTypes)) {
    bool good = types->is_array() && types->size() == convolutions.size();
    for (std::size_t i = 0; good && i < types->size(); ++i) {
      convolutions[i] = (*types)[i] == "conv";
      good = convolutions[i] || (*types)[i] == "full_attention";
    }
    if (!good)
      settings.refuse(kTypes, fmt::format("full_attention or conv for each of the {} layers", count));
    return convolutions;
  }
  const json* const attends = settings.find(kAttends);
  if (attends == nullptr) return convolutions;
  convolutions.flip();
  for (const json& layer : attends->is_array() ? *attends : json::array({-1})) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= convolutions.size())
      settings.refuse(kAttends, fmt::format("a list of layers from 0 to {}", count - 1));
    convolutions[layer.get<std::size_t>()] = false;
  }
  return convolutions;
}

constexpr const char* kKimiObject = "linear_attn_config";

// Kimi Linear's as linear_attn_config lists them, from 1 on; nothing: it does not.
std::optional<std::vector<bool>> listed_kimi_layers(const ConfigReader& settings, int64_t count) {
  if (settings.find(kKimiObject) == nullptr) return {};
  const ConfigReader inner = settings.inner(kKimiObject);
  constexpr const char *kRecurs = "kda_layers", *kAttends = "full_attn_layers";
  if (inner.find(kRecurs) == nullptr || inner.find(kAttends) == nullptr) return {};
  std::vector<int> types(static_cast<std::size_t>(count), -1);
  for (const char* key : {kAttends, kRecurs}) {
    const json& listed = *inner.find(key);
    for (const json& layer : listed.is_array() ? listed : json::array({-1})) {
      const bool is_layer =
          layer.is_number_unsigned() && layer.get<uint64_t>() >= 1 && layer.get<uint64_t>() <= types.size();
      if (!is_layer || types[layer.get<std::size_t>() - 1] >= 0)
        inner.refuse(key, fmt::format("a list of layers from 1 to {}, each of which is in one list", count));
      types[layer.get<std::size_t>() - 1] = key == kRecurs ? 1 : 0;
    }
  }
  if (std::find(types.begin(), types.end(), -1) != types.end())
    inner.refuse(kRecurs, fmt::format("with {} all of the {} layers", kAttends, count));
  return std::vector<bool>(types.begin(), types.end());
}

// Kimi Linear's: layer_types, or that list, or all but every fourth after the first. GLM-5.3's class does not
// read the list, and attends in each fourth layer.
std::vector<bool> kimi_layers(const ConfigReader& settings, bool glm5_next, int64_t count) {
  constexpr const char* kTypes = "layer_types";
  const auto listed = listed_kimi_layers(settings, count);
  const json* const types = settings.find(kTypes);
  std::vector<bool> recurrent;
  if (types == nullptr && listed && !glm5_next) return *listed;
  for (int64_t layer = 0; types == nullptr && layer < count; ++layer)
    recurrent.push_back(glm5_next ? layer % 4 != 3 : layer == 0 || layer % 4 != 0);
  bool good = types == nullptr || (types->is_array() && types->size() == static_cast<std::size_t>(count));
  for (std::size_t i = 0; good && types != nullptr && i < types->size(); ++i) {
    const json& type = (*types)[i];
    recurrent.push_back(type == "linear_attention");
    good = recurrent.back() || type == "full_attention" || (glm5_next && type == "indexed_attention");
  }
  if (!good)
    settings.refuse(kTypes, fmt::format("{} or linear_attention for each of the {} layers",
                                        glm5_next ? "indexed_attention" : "full_attention", count));
  if (listed && *listed != recurrent) settings.refuse(kTypes, fmt::format("the layers of {}", kKimiObject));
  return recurrent;
}

// GLM-5.3's: what logarithms of decays are above; 0: they have no bound.
double decay_bound(const ConfigReader& settings, const ConfigReader& inner) {
  constexpr const char *kOutside = "linear_lower_bound", *kWithin = "gate_lower_bound";
  constexpr double kOfClass = -5.0;
  std::optional<double> bound = settings.has(kOutside) ? settings.number(kOutside) : kOfClass;
  if (inner.has(kWithin)) {
    if (settings.has(kOutside) && bound != inner.number(kWithin))
      settings.refuse(kOutside, fmt::format("the same as {}.{}", kKimiObject, kWithin));
    bound = inner.number(kWithin);
  }
  const bool is_safe =
      !inner.has("safe_gate") || (inner.find("safe_gate") != nullptr && inner.flag("safe_gate", true));
  if (!bound && settings.find(kKimiObject) != nullptr && is_safe) bound = kOfClass;
  if (bound && !(*bound < 0.0)) settings.refuse(kOutside, "a number below 0, or null");
  return bound.value_or(0.0);
}

void parse_kimi(const ConfigReader& settings, bool glm5_next, Config& config) {
  constexpr int64_t kMaxKernel = 64;
  static const json kNone = json::object();
  const bool has_object = settings.find(kKimiObject) != nullptr;
  const std::string nowhere;
  const ConfigReader inner = has_object ? settings.inner(kKimiObject) : ConfigReader(kNone, nowhere);
  const auto size = [&](const char* key, const char* within, int64_t largest, int64_t absent) {
    return agreed(settings, key, settings.optional_size(key, largest), within,
                  inner.optional_size(within, largest))
        .value_or(absent);
  };
  DeltaRuleSettings& rule = config.delta_rule;
  rule.channel_gates = true;
  rule.key_heads = rule.value_heads = size("linear_num_heads", "num_heads", kMaxHeads, glm5_next ? 64 : 32);
  rule.key_head_dim = rule.value_head_dim = size("linear_head_dim", "head_dim", kMaxHeadDim, 128);
  rule.conv_kernel = size("linear_conv_kernel_dim", "short_conv_kernel_size", kMaxKernel, 4);
  for (const char* key : {"rope_scaling", "sliding_window"}) settings.only(key, nullptr);
  if (glm5_next) {
    rule.rates_in_row = true;
    rule.decay_bound = decay_bound(settings, inner);
    return;
  }
  settings.only("mla_use_nope", true);
  settings.only("moe_router_activation_func", "sigmoid");
}

void parse_convolutions(const ConfigReader& settings, Config& config) {
  constexpr int64_t kMaxKernel = 64;
  DeltaRuleSettings& rule = config.delta_rule;
  rule.convolution_alone = true;
  rule.value_heads = 1;
  rule.value_head_dim = config.hidden_size;
  rule.conv_kernel = settings.size("conv_L_cache", kMaxKernel, 3);
  settings.only("conv_dim", config.hidden_size);
  rule.conv_bias = rule.in_bias = rule.out_bias = settings.flag("conv_bias", false);
  if (family_of(config).experts.router != Router::kNone) return;  // whose MLPs are as wide as they say
  settings.only("block_use_swiglu", true);
  if (!settings.flag("block_auto_adjust_ff_dim", true)) return;
  // A share of two thirds, then a factor, then up to a multiple.
  const int64_t multiple = settings.size("block_multiple_of", kMaxIntermediate, 256);
  int64_t width = 2 * config.intermediate_size / 3;
  if (!settings.has("block_ffn_dim_multiplier") || settings.find("block_ffn_dim_multiplier") != nullptr) {
    const double factor = settings.positive("block_ffn_dim_multiplier", 1.0);
    width = static_cast<int64_t>(factor * static_cast<double>(width));
    width = (width + multiple - 1) / multiple * multiple;
  }
  if (width < 1 || width > kMaxIntermediate)
    settings.refuse("block_ffn_dim_multiplier", "a factor that leaves MLPs a width");
  config.intermediate_size = width;
}

// A number or what transformers 5 writes for one that JSON has not.
std::optional<double> limit_of(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == json{{"__float__", "Infinity"}}) return std::numeric_limits<double>::infinity();
  return {};
}

// time_step_limit: between what numbers steps are.
void parse_limits(const ConfigReader& settings, DeltaRuleSettings& rule) {
  constexpr const char* kKey = "time_step_limit";
  if (!settings.has(kKey)) return;
  const json* const limits = settings.find(kKey);
  const bool two = limits != nullptr && limits->is_array() && limits->size() == 2;
  const auto low = two ? limit_of((*limits)[0]) : std::nullopt, high = two ? limit_of((*limits)[1]) : low;
  if (!low || !high || !(*low <= *high)) settings.refuse(kKey, "two numbers, the first not above the second");
  rule.time_step_low = *low;
  rule.time_step_high = *high;
}

void parse_state_space(const ConfigReader& settings, const FamilyStateSpace& keys, Config& config) {
  DeltaRuleSettings& rule = config.delta_rule;
  constexpr int64_t kMaxKernel = 64;
  rule.state_space = true;
  rule.value_heads = settings.size(keys.heads, kMaxHeads, keys.heads_absent);
  if (keys.expands) {
    int64_t width = settings.size("mamba_expand", kMaxHidden, 2) * config.hidden_size;
    if (keys.width != nullptr && (!settings.has(keys.width) || settings.find(keys.width) != nullptr))
      width = settings.size(keys.width, kMaxHidden, keys.width_absent);
    if (width % rule.value_heads != 0)
      settings.refuse(keys.heads,
                      fmt::format("a divisor of {} ({})",
                                  keys.width != nullptr ? keys.width : "mamba_expand hidden_size", width));
    rule.value_head_dim = width / rule.value_heads;
    const json* const size = settings.find(keys.head_dim);
    if (size != nullptr && *size != "auto") settings.only(keys.head_dim, rule.value_head_dim);
    if (keys.reads_limits) parse_limits(settings, rule);
  } else {
    rule.value_head_dim = settings.size(keys.head_dim, kMaxHeadDim, 64);
    // time_step_limit is not read: this and no upper limit.
    rule.time_step_low = settings.number("time_step_min").value_or(0.001);
    settings.only("mamba_hidden_act", "silu");
  }
  rule.key_heads = settings.size(keys.groups, rule.value_heads, keys.groups_absent);
  if (rule.value_heads % rule.key_heads != 0)
    settings.refuse(keys.groups, fmt::format("a divisor of {} ({})", keys.heads, rule.value_heads));
  rule.key_head_dim = settings.size(keys.state, kMaxHeadDim, keys.state_absent);
  rule.conv_kernel = settings.size(keys.kernel, kMaxKernel, 4);
  rule.conv_bias = settings.flag(keys.conv_bias, true);
  rule.in_bias = settings.flag(keys.in_bias, false);
  rule.out_bias = settings.flag(keys.out_bias, false);
  if (keys.in_bias != std::string_view("mamba_proj_bias")) settings.only("mamba_proj_bias", false);
  settings.only("z_loss_coefficient", 0);  // Bamba's own loss has a term of the logits
  settings.only("normalization_function", "rmsnorm");
}

// Falcon-H1's: a state space next to attention in every layer, and factors of what their maps give.
void parse_beside_attention(const ConfigReader& settings, Config& config) {
  DeltaRuleSettings& rule = config.delta_rule;
  rule.beside_attention = true;
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  config.linear_attention.assign(layers, true);
  for (const char* key : {"layer_types", "layers_block_type"})
    settings.only(key, std::vector<std::string>(layers, "hybrid"));
  rule.norms_gated = settings.flag("mamba_rms_norm", false);
  rule.norm_before_gate = rule.norms_gated && settings.flag("mamba_norm_before_gate", true);
  const auto factors = [&](const char* key, std::size_t count) {
    return settings.find(key) == nullptr ? std::vector<double>(count, 1.0)
                                         : settings.positive_list(key, count);
  };
  const std::vector<double> parts = factors("ssm_multipliers", rule.in_multipliers.size());
  const double in = settings.positive("ssm_in_multiplier", 1.0);
  if (rule.in_bias) settings.only("ssm_in_multiplier", 1.0);  // which multiplies no bias
  for (std::size_t i = 0; i < parts.size(); ++i) rule.in_multipliers[i] = in * parts[i];
  rule.out_multiplier = settings.positive("ssm_out_multiplier", 1.0);
  config.query_multiplier = settings.positive("attention_in_multiplier", 1.0);
  config.key_multiplier = config.query_multiplier * settings.positive("key_multiplier", 1.0);
  // Which multiply what the maps read, and so no bias.
  if (config.qkv_bias) settings.only("attention_in_multiplier", 1.0);
  config.attention_multiplier = settings.positive("attention_out_multiplier", 1.0);
  const std::vector<double> of_mlp = factors("mlp_multipliers", 2);
  config.gate_multiplier = of_mlp[0];
  config.down_multiplier = of_mlp[1];
  config.embedding_scale = settings.positive("embedding_multiplier", 1.0);
  config.logits_scaling = 1.0 / settings.positive("lm_head_multiplier", 1.0);
}

// Nemotron-H's: a layer without a mixer is recurrent, with an empty state.
void parse_parts(const ConfigReader& settings, Config& config) {
  for (const char part : layer_parts(settings)) {
    config.linear_attention.push_back(part != '*');
    const bool mixes = part == 'M' || part == '*';
    config.no_mixer.push_back(!mixes);
    config.no_mlp.push_back(mixes);
  }
  for (const char* key : {"residual_in_fp32", "tie_word_embeddings"}) settings.only(key, false);
  settings.only("hidden_dropout", 0);
  settings.only("attention_head_dim", config.head_dim);
}

}  // namespace

std::string layer_parts(const ConfigReader& settings) {
  constexpr const char *kTypes = "layers_block_type", *kPattern = "hybrid_override_pattern";
  static const std::map<std::string, char> kParts = {
      {"linear_attention", 'M'}, {"mamba", 'M'}, {"full_attention", '*'},
      {"attention", '*'},        {"mlp", '-'},   {"moe", 'E'}};
  std::string parts;
  const json* const types = settings.find(kTypes);
  const char* const key = types != nullptr ? kTypes : kPattern;
  if (types != nullptr && types->is_array()) {
    for (const json& type : *types) {
      const auto known = type.is_string() ? kParts.find(type.get<std::string>()) : kParts.end();
      parts += known == kParts.end() ? '?' : known->second;
    }
  } else if (types == nullptr) {
    parts = settings.text(kPattern).value_or("");
  }
  if (parts.empty() || parts.size() > kMaxLayers || parts.find_first_not_of("M*-E") != std::string::npos)
    settings.refuse(key, "linear_attention, full_attention, mlp or moe (M, *, - or E) for each layer");
  settings.only("num_hidden_layers", parts.size());
  return parts;
}

void parse_recurrent(const ConfigReader& settings, const Family& family, Config& config) {
  if (family.lfm3) return parse_lfm3(settings, family, config);
  if (family.one_part_layers) {
    parse_parts(settings, config);
  } else if (family.kimi || family.glm5_next) {
    config.linear_attention = kimi_layers(settings, family.glm5_next, config.num_hidden_layers);
  } else if (!family.shared_blocks && (!family.state_space || !family.state_space->beside_attention)) {
    config.linear_attention = family.convolutions
                                  ? convolution_layers(settings, config.num_hidden_layers)
                                  : recurrent_layers(settings, family, config.num_hidden_layers);
  }
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), 0);
  if (family.kimi || family.glm5_next) return parse_kimi(settings, family.glm5_next, config);
  if (family.convolutions) {
    settings.only("sliding_window", nullptr);
    return parse_convolutions(settings, config);
  }
  if (family.state_space) {
    settings.only("sliding_window", nullptr);
    parse_state_space(settings, *family.state_space, config);
    if (family.state_space->beside_attention) parse_beside_attention(settings, config);
    if (family.shared_blocks) parse_shared_blocks(settings, config);
    return;
  }
  config.attention_output_gate = true;
  settings.only("attn_output_gate", true);
  settings.only("sliding_window", nullptr);
  settings.only("use_sliding_window", false);
  settings.only("mamba_ssm_dtype", "float32");  // the state's: it is never narrower here
  DeltaRuleSettings& rule = config.delta_rule;
  constexpr int64_t kMaxKernel = 64;
  rule.key_heads = settings.size("linear_num_key_heads", kMaxHeads, 16);
  rule.value_heads = settings.size("linear_num_value_heads", kMaxHeads, 32);
  rule.key_head_dim = settings.size("linear_key_head_dim", kMaxHeadDim, 128);
  rule.value_head_dim = settings.size("linear_value_head_dim", kMaxHeadDim, 128);
  rule.conv_kernel = settings.size("linear_conv_kernel_dim", kMaxKernel, 4);
  rule.fused_projections = family.fused_recurrence;
  if (rule.value_heads % rule.key_heads != 0)
    settings.refuse("linear_num_value_heads",
                    fmt::format("a multiple of linear_num_key_heads ({})", rule.key_heads));
}

}  // namespace streambp
