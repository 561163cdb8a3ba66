// What the tests of adapters share: models with adapters of every kind that PEFT trains.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "streambp/model/lora/peft_name.h"
#include "streambp/model/model.h"

namespace streambp {

struct AdapterVariant {
  std::string name;
  std::string preset;
  LoraConfig lora;

  friend void PrintTo(const AdapterVariant& variant, std::ostream* stream) { *stream << variant.name; }
};

inline std::vector<AdapterVariant> adapter_variants() {
  std::vector<AdapterVariant> variants;
  const auto add = [&](const char* name, const char* preset_name, std::vector<std::string> targets,
                       auto change) {
    LoraConfig lora;
    lora.r = 3;
    lora.lora_alpha = 5.0;
    lora.target_modules = std::move(targets);
    change(lora);
    variants.push_back({name, preset_name, lora});
  };
  add("rsLoRA", "qwen3-tiny", {"down_proj", "q_proj", "v_proj"},
      [](LoraConfig& lora) { lora.use_rslora = true; });
  add("patterns", "qwen2-window-tiny", {kAllLinear}, [](LoraConfig& lora) {
    lora.rank_pattern = {{"layers.0.mlp.up_proj", 1}, {"mlp.*", 4}};
    lora.alpha_pattern = {{"[qk]_proj", 0.5}};
    lora.exclude_modules = {"o_proj", "layers.1.mlp.down_proj"};
  });
  add("some layers", "llama-tied-tiny", {"q_proj", "down_proj"},
      [](LoraConfig& lora) { lora.layers_to_transform = {2}; });
  add("a pattern", "mistral-tiny", {},
      [](LoraConfig& lora) { lora.target_pattern = R"(.*\.1\.(self_attn\.v|mlp\.gate)_proj)"; });
  add("fused maps", "phi3-tiny", {kAllLinear}, [](LoraConfig& lora) {
    lora.rank_pattern = {{"qkv_proj", 2}};
  });
  add("a mixture", "qwen3-moe-tiny", {kAllLinear}, [](LoraConfig&) {});
  add("experts one by one", "qwen3-moe-tiny", {"gate_proj", "o_proj"}, [](LoraConfig&) {});
  add("experts in two tensors", "gpt-oss-tiny", {"v_proj"}, [](LoraConfig& lora) {
    lora.target_parameters = {"experts.gate_up_proj", "experts.down_proj", "router.weight"};
    lora.rank_pattern = {{"experts.down_proj", 2}};
  });
  add("a saved router", "gpt-oss-tiny", {"o_proj"},
      [](LoraConfig& lora) { lora.modules_to_save = {"layers.1.mlp.router"}; });
  add("recurrent layers", "qwen3.5-tiny", {kAllLinear}, [](LoraConfig&) {});
  add("recurrent layers with fused maps", "qwen3-next-tiny", {"in_proj_qkvz", "in_proj_ba", "out_proj"},
      [](LoraConfig& lora) { lora.modules_to_save = {"layers.1.input_layernorm"}; });
  add("saved norms and head", "qwen3-tiny", {"k_proj"}, [](LoraConfig& lora) {
    lora.modules_to_save = {"norm", "lm_head"};
  });
  add("saved fused map", "phi3-tiny", {"o_proj"}, [](LoraConfig& lora) {
    lora.modules_to_save = {"layers.0.self_attn.qkv_proj", "layers.1.mlp"};
  });
  add("saved embedding, tied", "llama-tied-tiny", {"q_proj"},
      [](LoraConfig& lora) { lora.modules_to_save = {"embed_tokens"}; });
  add("saved head, tied", "gemma2-tiny", {"q_proj"},
      [](LoraConfig& lora) { lora.modules_to_save = {"lm_head"}; });
  add("saved both, tied", "llama-tied-tiny", {"q_proj"}, [](LoraConfig& lora) {
    lora.modules_to_save = {"embed_tokens", "lm_head"};
  });
  add("tokens, tied", "gemma3-tiny", {"q_proj"}, [](LoraConfig& lora) {
    lora.trainable_token_indices = {{"embed_tokens", {7, 3, 99, 41}}};
  });
  add("tokens of both", "llama-tiny", {"q_proj"}, [](LoraConfig& lora) {
    lora.trainable_token_indices = {{"embed_tokens", {7, 3}}, {"lm_head", {50, 3, 12}}};
  });
  add("head and embedding", "qwen3-tiny", {"lm_head", "embed_tokens", "up_proj"}, [](LoraConfig&) {});
  add("head and embedding, tied", "gemma2-tiny", {"lm_head", "embed_tokens"}, [](LoraConfig&) {});
  add("biases", "qwen2-tiny", {"q_proj", "k_proj"}, [](LoraConfig& lora) {
    lora.bias = "all";
    lora.lora_bias = true;
  });
  return variants;
}

/// A frozen base.
inline Model frozen_model(const std::string& name) {
  return Model::random(preset(name),
                       {at::kDouble, at::kCPU, at::kDouble, [](const std::string&) { return false; }}, 1);
}

/// Moves all that is trained, so that adapters do something and saved modules are not the base's.
inline void disturb(Model& model, uint64_t seed, double size = 0.1) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& parameter : model.parameters()) {
    if (is_peft_name(parameter->name))
      parameter->value.add_(at::randn(parameter->value.sizes(), generator, at::kDouble).to(parameter->value),
                            size);
  }
}

inline Model adapted_model(const AdapterVariant& variant) {
  Model model = frozen_model(variant.preset);
  model.attach_adapters(variant.lora, 7);
  disturb(model, 8);
  return model;
}

}  // namespace streambp
