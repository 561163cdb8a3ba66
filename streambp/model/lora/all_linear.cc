#include "streambp/model/lora/all_linear.h"

#include "streambp/model/config/family.h"

namespace streambp {
namespace {

/// Those of Gemma 4 that are not in every decoder.
std::vector<std::string> gemma4_names(const Config& config) {
  std::vector<std::string> names;
  if (config.mixture.next_to_mlp) names.emplace_back("proj");
  if (config.has_per_layer_inputs())
    names.insert(names.end(), {"per_layer_model_projection", "per_layer_input_gate", "per_layer_projection"});
  return names;
}

}  // namespace

std::vector<std::string> attention_names(const Config& config) {
  if (config.is_compressed()) {
    // Not o_a_proj, whose groups a module's adapter does not fit: PEFT fails with it.
    std::vector<std::string> names{"q_a_proj", "q_b_proj", "kv_proj", "o_b_proj"};
    if (config.has_indexers()) names.emplace_back("weights_proj");
    return names;
  }
  if (!config.is_latent()) return {"q_proj", "k_proj", "v_proj", modules_of(config).out};
  std::vector<std::string> names{"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"};
  if (config.latent.q_lora_rank == 0) names = {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"};
  // Whose adapters have their part in choices, and no gradient, as in PEFT.
  if (config.has_indexers()) names.insert(names.end(), {"wq_b", "wk", "weights_proj"});
  return names;
}

std::vector<std::string> all_linear_names(const Config& config) {
  if (config.has_shared_blocks())
    return {"linear", "in_proj", "out_proj",     "q_proj",   "k_proj",
            "v_proj", "o_proj",  "gate_up_proj", "down_proj"};
  if (config.mixture.biased_interleaved) return {"q_proj", "k_proj", "v_proj", "o_proj"};
  if (config.fused_projections) return {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};
  const FamilyModules& modules = modules_of(config);
  if (config.fused_gate_up) {
    std::vector<std::string> names{"q_proj", "k_proj", "v_proj", "o_proj", modules.gate_up, modules.down};
    if (config.delta_rule.state_space) names.insert(names.end(), {"in_proj", "out_proj"});
    return names;
  }
  std::vector<std::string> names = attention_names(config);
  if (config.gates_heads) names.emplace_back("g_proj");
  if (config.has_gate()) names.emplace_back(modules.gate);
  names.insert(names.end(), {modules.up, modules.down});
  const std::vector<std::string> more = gemma4_names(config);
  names.insert(names.end(), more.begin(), more.end());
  if (config.mixture.plain_latents) {
    names.insert(names.end(), {"fc1_latent_proj", "fc2_latent_proj"});
  } else if (config.mixture.moe_hidden_size > 0) {
    names.insert(names.end(), {"pre_expert_proj", "post_expert_proj"});
  }
  if (config.linear_attention.empty()) return names;
  if (config.delta_rule.channel_gates) {  // whose o_proj is there
    if (config.latent.q_lora_rank > 0) names.emplace_back("q_proj");
    names.insert(names.end(), {"k_proj", "v_proj", "f_a_proj", "f_b_proj", "b_proj", "g_a_proj", "g_b_proj"});
    return names;
  }
  names.emplace_back("out_proj");
  if (config.delta_rule.state_space || config.delta_rule.convolution_alone) {
    names.emplace_back("in_proj");
    return names;
  }
  const auto in = config.delta_rule.fused_projections
                      ? std::vector<std::string>{"in_proj_qkvz", "in_proj_ba"}
                      : std::vector<std::string>{"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"};
  names.insert(names.end(), in.begin(), in.end());
  if (!config.has_low_rank_streams()) return names;
  // An indexer's has its part in choices, and no gradient, as in PEFT.
  if (config.has_indexers()) names.emplace_back("index_qk_proj");
  names.insert(names.end(), {"input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"});
  if (!config.ngrams.modules.empty()) names.insert(names.end(), {"key_proj", "value_proj"});
  return names;
}

}  // namespace streambp
