// Any text is either refused with an InputError or gives a LoraConfig whose adapters fit the model they are
// for, and which says the same once it is written and read again.
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>

#include "streambp/error.h"
#include "streambp/model/lora/lora.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

using streambp::Config;
using streambp::LoraConfig;

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

const std::vector<Config>& models() {
  const std::string sizes =
      R"("vocab_size":11,"hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,)"
      R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":4,"max_position_embeddings":16,)"
      R"("rms_norm_eps":1e-06)";
  static const std::vector<Config> configs{
      streambp::parse_config(R"({"model_type":"qwen2",)" + sizes + R"(,"tie_word_embeddings":true})", "fuzz"),
      streambp::parse_config(
          R"({"model_type":"qwen3_moe",)" + sizes +
              R"(,"num_experts":2,"num_experts_per_tok":1,"moe_intermediate_size":6,"mlp_only_layers":[1]})",
          "fuzz")};
  return configs;
}

void require_promises(const LoraConfig& lora) {
  require(lora.r >= 1 && std::isfinite(lora.lora_alpha) && lora.lora_alpha > 0.0);
  require(lora.bias == "none" || lora.bias == "all" || lora.bias == "lora_only");
  require(!lora.target_modules.empty() || !lora.target_pattern.empty() || !lora.target_parameters.empty());
  require(lora.target_modules.empty() || lora.target_pattern.empty());
  for (const auto& [pattern, rank] : lora.rank_pattern) require(rank >= 1);
  for (const auto& [pattern, alpha] : lora.alpha_pattern) require(std::isfinite(alpha) && alpha > 0.0);
}

void require_fits(const LoraConfig& lora, const Config& config) {
  const std::vector<streambp::LoraTarget> targets = streambp::lora_targets(config, lora);
  require(!targets.empty());
  std::set<std::string> names;
  for (const streambp::LoraTarget& target : targets) {
    require(target.rank >= 1 && target.out > 0 && target.in > 0 && target.experts > 0);
    require(!std::isnan(target.scale) && target.scale >= 0.0);
    require(names.insert(target.a).second && names.insert(target.b).second);
  }
  for (const auto& [parameter, rows] : streambp::lora_extras(config, lora).rows) {
    for (const int64_t row : rows) require(row >= 0 && row < config.vocab_size);
  }
}

/// Patterns are written in the order of their names, which says something else where more than one fits.
void require_written(const LoraConfig& lora) {
  static const streambp::fuzz::Scratch folder;
  streambp::write_lora_config(folder.path(), lora, "base");
  const LoraConfig again = streambp::read_lora_config(folder.path());
  require(again.r == lora.r && again.lora_alpha == lora.lora_alpha && again.use_rslora == lora.use_rslora);
  require(again.target_modules == lora.target_modules && again.target_pattern == lora.target_pattern);
  require(again.exclude_modules == lora.exclude_modules && again.exclude_pattern == lora.exclude_pattern);
  require(again.layers_to_transform == lora.layers_to_transform);
  require(again.layers_pattern == lora.layers_pattern);
  require(again.target_parameters == lora.target_parameters);
  require(again.rank_pattern.size() == lora.rank_pattern.size());
  require(again.alpha_pattern.size() == lora.alpha_pattern.size());
  require(again.modules_to_save == lora.modules_to_save);
  require(again.trainable_token_indices == lora.trainable_token_indices);
  require(again.lora_bias == lora.lora_bias && again.bias == lora.bias);
  require(again.ensure_weight_tying == lora.ensure_weight_tying);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const LoraConfig lora =
        streambp::parse_lora_config(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    ++accepted_count;
    require_promises(lora);
    require_written(lora);
    for (const Config& config : models()) {
      try {
        require_fits(lora, config);
      } catch (const streambp::InputError&) {  // of another model
      }
    }
  } catch (const streambp::InputError&) {
  }
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const std::string start = R"({"peft_type":"LORA","r":2,"lora_alpha":4,)";
  return {
      "{}",
      start + R"("target_modules":["q_proj","v_proj"],"lora_dropout":0.0,"bias":"none"})",
      start + R"("target_modules":"all-linear","use_rslora":true,"modules_to_save":["norm"]})",
      start + R"("target_modules":".*\\.[qk]_proj","exclude_modules":"model\\.layers\\.1.*"})",
      start + R"("target_modules":["q_proj"],"layers_to_transform":[0],"layers_pattern":"layers"})",
      start +
          R"("target_modules":["q_proj","k_proj"],"rank_pattern":{"k_proj":3,"layers.(0|1).self_attn":5},)"
          R"("alpha_pattern":{"^q":0.5},"task_type":"SEQ_CLS"})",
      start + R"("target_modules":["down_proj"],"trainable_token_indices":{"embed_tokens":[0,10]}})",
      start +
          R"("target_parameters":["mlp.experts.gate_up_proj","gate.weight"],"trainable_token_indices":[3]})",
      start + R"("target_modules":["embed_tokens"],"init_lora_weights":"gaussian","revision":null})",
      start + R"("target_modules":["q_proj"],"lora_bias":true,"bias":"all","ensure_weight_tying":true})",
      start + R"("target_modules":["q_proj"],"use_dora":true})"};
}

std::vector<std::string> dictionary() {
  std::vector<std::string> words{"null",
                                 "true",
                                 "false",
                                 "0",
                                 "-1",
                                 "1000001",
                                 "1e308",
                                 "1e-320",
                                 "0.5",
                                 "{",
                                 "}",
                                 "[",
                                 "]",
                                 ",",
                                 ":",
                                 "\\\\.",
                                 "(?:",
                                 "(?=",
                                 "{1,99}",
                                 ".*",
                                 "|",
                                 ")*",
                                 "^",
                                 "$",
                                 "[^",
                                 "\\\\d",
                                 "\\\\b",
                                 "\"LORA\"",
                                 "layers",
                                 "all-linear",
                                 "model.layers.0.self_attn.q_proj",
                                 "mlp.experts",
                                 "lm_head",
                                 "18446744073709551615"};
  for (const std::string& key : known_lora_keys()) words.push_back("\"" + key + "\"");
  return words;
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
