// Layers with a gated delta rule instead of attention, as config.json says them (transformers,
// configuration_qwen3_5.py and configuration_qwen3_next.py).
#include <algorithm>

#include "streambp/model/config_reader.h"
#include "streambp/model/family.h"

namespace streambp {
namespace {

using nlohmann::json;

// layer_types, or every layer but each full_attention_interval-th.
std::vector<bool> recurrent_layers(const ConfigReader& settings, int64_t count) {
  std::vector<bool> recurrent;
  const json* const types = settings.find("layer_types");
  if (types == nullptr) {
    const int64_t interval = settings.size("full_attention_interval", kMaxLayers, 4);
    for (int64_t layer = 1; layer <= count; ++layer) recurrent.push_back(layer % interval != 0);
    return recurrent;
  }
  bool good = types->is_array() && types->size() == static_cast<std::size_t>(count);
  for (std::size_t i = 0; good && i < types->size(); ++i) {
    good = (*types)[i] == "full_attention" || (*types)[i] == "linear_attention";
    recurrent.push_back((*types)[i] == "linear_attention");
  }
  if (!good)
    settings.refuse("layer_types",
                    fmt::format("full_attention or linear_attention for each of the {} layers", count));
  return recurrent;
}

}  // namespace

void parse_recurrent(const ConfigReader& settings, const Family& family, Config& config) {
  config.linear_attention = recurrent_layers(settings, config.num_hidden_layers);
  config.windows.assign(static_cast<std::size_t>(config.num_hidden_layers), 0);
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
