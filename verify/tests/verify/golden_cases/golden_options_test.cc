// What becomes of a golden case's hyperparameters: an option each, a known value, or a refusal.
#include "verify/golden_cases/golden_options.h"

#include <gtest/gtest.h>

#include "streambp/objective/objective.h"
#include "verify/tests/streambp/model/file_testing.h"

namespace streambp::verify {
namespace {

using OptionMap = std::map<std::string, std::string>;

OptionMap options_of(const std::string& objective, const std::string& hyperparameters) {
  const TempFolder folder;
  folder.write("case.json", "{\"hyperparameters\": {" + hyperparameters + "}}");
  const OptionMap options = golden_options(objective, CaseFile(folder.path()));
  complete_options(objective_kind(objective), options);  // throws for one that the objective does not have
  return options;
}

/// Why a case of these hyperparameters is left out; empty: it is not.
std::string unsupported(const std::string& objective, const std::string& hyperparameters) {
  try {
    options_of(objective, hyperparameters);
  } catch (const Unsupported& reason) {
    return reason.what();
  }
  return {};
}

TEST(GoldenOptions, AreTheObjectivesOwn) {
  EXPECT_EQ(options_of("sft",
                       R"("ignore_index": -100, "reduction": "mean over labels != -100", "padding": "left")"),
            OptionMap());
  EXPECT_EQ(options_of("sft", R"("label_smoothing": 0.1)"), (OptionMap{{"label_smoothing", "0.1"}}));
  EXPECT_EQ(options_of("dpo", R"("beta": 0.25, "loss_type": "robust", "label_smoothing": 0.2, "num_pairs": 2,
                                 "f_divergence_type": "reverse_kl", "ld_alpha": null, "reference_free": true)"),
            (OptionMap{{"beta", "0.25"},
                       {"f_divergence_type", "reverse_kl"},
                       {"loss_type", "robust"},
                       {"label_smoothing", "0.2"},
                       {"reference_free", "true"}}));
  EXPECT_EQ(
      options_of("grpo", R"("loss_type": "dr_grpo", "delta": 1.5, "max_completion_length": 40, "beta": 0.0,
                                  "num_processes": 1, "steps_per_generation": 1)"),
      (OptionMap{
          {"loss_type", "dr_grpo"}, {"delta", "1.5"}, {"max_completion_length", "40"}, {"beta", "0.0"}}));
  // The logits' divisor counts, not the temperature that TRL makes it from.
  EXPECT_EQ(
      options_of("ppo", R"("temperature": 0.7, "logits_divisor": 0.7000001, "vf_coef": 0.5, "gamma": 1.0,
                                 "value_model": "separate")"),
      (OptionMap{{"temperature", "0.7000001"}, {"vf_coef", "0.5"}}));
}

TEST(GoldenOptions, SmoothingIsOfTheLossesThatTrlSmooths) {
  for (const char* type : {"hinge", "ipo", "sigmoid", "apo_zero"}) {
    EXPECT_EQ(options_of("dpo", std::string(R"("label_smoothing": 0.1, "loss_type": ")") + type + "\""),
              (OptionMap{{"loss_type", type}}));
  }
  EXPECT_EQ(options_of("dpo", R"("label_smoothing": 0.1, "loss_type": "exo_pair")"),
            (OptionMap{{"loss_type", "exo_pair"}, {"label_smoothing", "0.1"}}));
  EXPECT_EQ(options_of("cpo", R"("label_smoothing": 0.1, "loss_type": "sigmoid")"),
            (OptionMap{{"loss_type", "sigmoid"}, {"label_smoothing", "0.1"}}));
  EXPECT_EQ(options_of("cpo", R"("label_smoothing": 0.1, "loss_type": "hinge")"),
            (OptionMap{{"loss_type", "hinge"}}));
}

TEST(GoldenOptions, ListsAreOneOption) {
  EXPECT_EQ(options_of("dpo", R"("loss_type": ["sigmoid", "sft"], "loss_weights": [0.5, 2.0])"),
            (OptionMap{{"loss_type", "sigmoid+sft"}, {"loss_weights", "0.5+2.0"}}));
  EXPECT_EQ(unsupported("dpo", R"("loss_type": ["sigmoid", "nothing"])"), "loss_type \"nothing\"");
}

TEST(GoldenOptions, NothingIsIgnored) {
  EXPECT_EQ(unsupported("sft", R"("ignore_index": -1)"), "ignore_index -1");
  EXPECT_EQ(unsupported("sft", R"("reduction": "sum")"), "reduction \"sum\"");
  EXPECT_EQ(unsupported("dpo", R"("loss_type": "kto_pair")"), "loss_type \"kto_pair\"");
  EXPECT_EQ(unsupported("dpo", R"("f_divergence_type": "hellinger")"), "f_divergence_type \"hellinger\"");
  EXPECT_EQ(unsupported("dpo", R"("sync_ref_model": true)"), "hyperparameter sync_ref_model true");
  EXPECT_EQ(unsupported("simpo", R"("loss_type": "hinge")"), "loss_type \"hinge\"");
  EXPECT_EQ(unsupported("grpo", R"("loss_type": "gspo")"), "loss_type \"gspo\"");
  EXPECT_EQ(unsupported("grpo", R"("importance_sampling_level": "turn")"),
            "importance_sampling_level \"turn\"");
  EXPECT_EQ(unsupported("grpo", R"("num_processes": 2)"), "num_processes 2");
  EXPECT_EQ(unsupported("grpo", R"("use_adaptive_entropy": true)"), "use_adaptive_entropy true");
  EXPECT_EQ(unsupported("grpo", R"("scale_rewards": "group")"), "hyperparameter scale_rewards \"group\"");
  EXPECT_EQ(unsupported("ppo", R"("value_model": "none")"), "value_model \"none\"");
  EXPECT_EQ(unsupported("ppo", R"("kl_penalty": "k3+")"), "hyperparameter kl_penalty \"k3+\"");
}

}  // namespace
}  // namespace streambp::verify
