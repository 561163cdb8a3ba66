#include "verify/golden_cases/golden_options.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/objective/objective.h"

namespace streambp::verify {
namespace {

using nlohmann::json;

/// What is known of an objective's hyperparameters. What is null is off.
struct Keys {
  std::map<std::string, std::string> options;     // to the option of the objective
  std::map<std::string, std::vector<json>> only;  // the values that the formulas here stand for
  std::vector<std::string> described;             // say of the inputs what their tensors hold
};

Keys grpo_keys() {
  Keys keys;
  for (const char* name : {"loss_type",
                           "importance_sampling_level",
                           "epsilon_low",
                           "epsilon_high",
                           "delta",
                           "clip_ratio_c",
                           "sapo_temperature_pos",
                           "sapo_temperature_neg",
                           "vespo_k_pos",
                           "vespo_k_neg",
                           "vespo_lambda_pos",
                           "vespo_lambda_neg",
                           "top_entropy_quantile",
                           "off_policy_mask_threshold",
                           "entropy_coef",
                           "beta",
                           "kl_estimator",
                           "use_bias_correction_kl",
                           "temperature",
                           "router_aux_loss_coef",
                           "max_completion_length",
                           "num_items_in_batch"}) {
    keys.options[name] = name;
  }
  keys.only = {// TRL divides by them; no formula here does.
               {"num_processes", {1}},
               {"current_gradient_accumulation_steps", {1}},
               // in.importance_sampling_ratio counts where it is given.
               {"use_vllm", {true}},
               {"vllm_importance_sampling_correction", {true}},
               // Changes entropy_coef from step to step.
               {"use_adaptive_entropy", {false}}};
  keys.described = {"prompt_length",
                    "completion_length",
                    "completion",
                    "position_ids",
                    "steps_per_generation",
                    "vllm_importance_sampling_mode",
                    "vllm_importance_sampling_clip_min",
                    "vllm_importance_sampling_clip_max"};
  return keys;
}

/// Of TRL's CPOTrainer, which is SimPO's too.
Keys cpo_keys() {
  Keys keys;
  for (const char* name : {"loss_type", "beta", "label_smoothing", "simpo_gamma", "alpha", "cpo_alpha"})
    keys.options[name] = name;
  keys.described = {"num_pairs", "row_order", "position_ids"};
  return keys;
}

const std::map<std::string, Keys> kKeysOf{
    {"sft",
     {{{"label_smoothing", "label_smoothing"}, {"loss_type", "loss_type"}},
      {{"ignore_index", {-100}}, {"reduction", {"mean over labels != -100"}}},
      {"padding", "position_ids"}}},
    {"dpo",
     {{{"beta", "beta"},
       {"loss_type", "loss_type"},
       {"loss_weights", "loss_weights"},
       {"label_smoothing", "label_smoothing"},
       {"f_divergence_type", "f_divergence_type"},
       {"f_alpha_divergence_coef", "f_alpha_divergence_coef"},
       {"ld_alpha", "ld_alpha"},
       {"use_weighting", "use_weighting"},
       {"discopop_tau", "discopop_tau"},
       {"router_aux_loss_coef", "router_aux_loss_coef"},
       {"reference_free", "reference_free"}},
      {},
      {"num_pairs", "row_order", "position_ids", "reference"}}},
    {"cpo", cpo_keys()},
    {"simpo", cpo_keys()},
    {"orpo", {{{"beta", "beta"}, {"nll", "nll"}}, {}, {"num_pairs", "row_order", "position_ids"}}},
    {"kto",
     {{{"beta", "beta"},
       {"loss_type", "loss_type"},
       {"desirable_weight", "desirable_weight"},
       {"undesirable_weight", "undesirable_weight"},
       {"router_aux_loss_coef", "router_aux_loss_coef"}},
      {},
      {"calculate_KL", "position_ids"}}},
    {"grpo", grpo_keys()},
    {"rloo",
     {{{"epsilon_low", "epsilon_low"},
       {"epsilon_high", "epsilon_high"},
       {"temperature", "temperature"},
       {"router_aux_loss_coef", "router_aux_loss_coef"}},
      {{"beta", {0}}},  // TRL's takes the divergence off the rewards
      {"prompt_length", "completion_length", "completion", "position_ids"}}},
    {"ppo",
     {{{"logits_divisor", "temperature"},
       {"cliprange", "cliprange"},
       {"cliprange_value", "cliprange_value"},
       {"clip_ratio_c", "clip_ratio_c"},
       {"vf_coef", "vf_coef"},
       {"entropy_coef", "entropy_coef"},
       {"kl_coef", "kl_coef"},
       {"kl_estimator", "kl_estimator"}},
      {{"value_model", {"shared backbone", "separate"}}},
      {"temperature", "gamma", "lam", "context_length", "response_length", "position_ids", "advantages"}}},
    {"distill",
     {{{"divergence", "divergence"},
       {"beta", "beta"},
       {"temperature", "temperature"},
       {"alpha", "alpha"},
       {"vocabulary", "vocabulary"},
       {"num_items_in_batch", "divisor"}},
      {{"ignore_index", {-100}}, {"reduction", {"batchmean"}}},
      {"teacher", "position_ids"}}},
    {"reward",
     {{{"center_rewards_coefficient", "center_rewards_coefficient"}}, {}, {"num_pairs", "position_ids"}}},
    {"infonce",
     {{{"pooling", "pooling"},
       {"scale", "scale"},
       {"similarity", "similarity"},
       {"negatives", "negatives"},
       {"symmetric", "symmetric"}},
      {},
      {"row_order", "position_ids"}}},
};

std::string text_of(const json& value) {
  if (!value.is_array()) return value.is_string() ? value.get<std::string>() : value.dump();
  std::vector<std::string> parts;
  for (const json& part : value) parts.push_back(text_of(part));
  return fmt::format("{}", fmt::join(parts, "+"));
}

void require_choice(const std::string& objective, const std::string& option, const json& value) {
  for (const Option& known : objective_kind(objective).options) {
    if (known.name != option || known.choices.empty()) continue;
    const std::vector<json> words =
        value.is_array() ? value.get<std::vector<json>>() : std::vector<json>{value};
    for (const json& word : words) {
      if (std::find(known.choices.begin(), known.choices.end(), text_of(word)) == known.choices.end())
        throw Unsupported(fmt::format("{} {}", option, shown(word)));
    }
  }
}

/// Whether TRL's trainer of `objective` smooths the labels of any of these losses. DPOTrainer no longer does
/// sigmoid's.
bool smooths(const std::string& objective, const std::string& losses) {
  const std::vector<std::string> those = objective == "dpo"
                                             ? std::vector<std::string>{"robust", "exo_pair", "aot"}
                                             : std::vector<std::string>{"sigmoid", "simpo"};
  return std::any_of(those.begin(), those.end(),
                     [&](const std::string& name) { return losses.find(name) != std::string::npos; });
}

}  // namespace

bool has_golden_options(const std::string& objective) {
  return kKeysOf.contains(objective);
}

std::map<std::string, std::string> golden_options(const std::string& objective, const CaseFile& file) {
  const Keys& keys = kKeysOf.at(objective);
  std::map<std::string, std::string> options;
  for (const auto& [key, value] : file.hyperparameters().items()) {
    if (value.is_null()) continue;
    if (const auto option = keys.options.find(key); option != keys.options.end()) {
      require_choice(objective, option->second, value);
      options[option->second] = text_of(value);
      continue;
    }
    if (const auto only = keys.only.find(key); only != keys.only.end()) {
      if (std::find(only->second.begin(), only->second.end(), value) == only->second.end())
        throw Unsupported(fmt::format("{} {}", key, shown(value)));
      continue;
    }
    if (std::find(keys.described.begin(), keys.described.end(), key) == keys.described.end())
      throw Unsupported(fmt::format("hyperparameter {} {}", key, shown(value)));
  }
  if ((objective == "dpo" || objective == "cpo") && options.contains("loss_type") &&
      !smooths(objective, options.at("loss_type"))) {
    // TRL has label_smoothing in its settings whatever the loss.
    options.erase("label_smoothing");
  }
  if (objective == "simpo") {  // CPOTrainer with this loss_type
    if (options.contains("loss_type") && options.at("loss_type") != "simpo")
      throw Unsupported(fmt::format("loss_type \"{}\"", options.at("loss_type")));
    options.erase("loss_type");
  }
  return options;
}

}  // namespace streambp::verify
