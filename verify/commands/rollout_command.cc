// `streambp-verify rollout`: completions that an inference engine sampled, and what its log-probabilities do
// to the gradient.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/ranges.h>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "streambp/data/objective_inputs.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/rollout/rollout.h"

namespace streambp::verify {
namespace {

struct RolloutFlags : CommonFlags {
  std::string model, tokens, settings, adapter, reference;
  RatioBounds bounds;
};

constexpr const char* kRolloutExamples = R"(Examples:
  streambp-verify rollout --model DIR --tokens batch.safetensors
  streambp-verify rollout --model DIR --tokens batch.safetensors --set loss_type=dapo,temperature=0.7 --clip-max 2

batch.safetensors is what TRL's GRPOTrainer gives its loss, with sampling_per_token_logps [B, C] (NaN: not known).

What is printed, for gradients that differ in what each token's loss is multiplied by:
  unbiased           the ratio of its whole row, exp(sum of log p - log p_sampling), however large
  uncorrected        1: as if the engine were the trainer
  token_truncate, token_mask, sequence_truncate, sequence_mask
                     TRL's vllm_importance_sampling_mode: the ratio of the token or of the row, cut to or set to 0
                     outside of --clip-min and --clip-max
  as in the batch    its importance_sampling_ratio
  sampling as old    1, with the engine's log-probabilities for those of the old policy
By row: the tokens, the mean and the largest log p - log p_sampling, the row's share of the uncorrected gradient's
length, its ratio, and of each gradient its length over the row's uncorrected one and the angle between them.
)";

int run_rollout(const RolloutFlags& flags) {
  CompareOptions options;
  options.objective = "grpo";
  options.model = flags.model;
  options.tokens = flags.tokens;
  options.settings = parse_settings(flags.settings, "--set");
  options.pad_token = take_pad_token(options.settings);
  options.adapter = flags.adapter;
  options.reference = flags.reference;
  Truth truth = open_truth(options);
  for (const std::string& note : reading_notes(truth.batch))
    print_line(stderr, "streambp-verify: {}: {}", options.tokens, note);
  const Rollout rollout = measure_rollout(truth, options, flags.bounds);
  fmt::print("{}", flags.json ? rollout_json(rollout) + "\n" : rollout_text(rollout));
  return kExitGood;
}

}  // namespace

void add_rollout_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<RolloutFlags>();
  CLI::App* const command = app.add_subcommand(
      "rollout", "An inference engine's log-probabilities: what the mismatch does to the gradient");
  command->footer(std::string(kRolloutExamples) + "\n" + kExitCodes);
  command->add_option("--model", flags->model, "A folder or a preset")->required();
  command
      ->add_option("--tokens", flags->tokens,
                   "safetensors: prompt_ids, completion_ids, ..., sampling_per_token_logps")
      ->required();
  command->add_option("--set", flags->settings, "Options of grpo, as loss_type=dapo,temperature=0.7")
      ->join(',');
  command->add_option("--adapter", flags->adapter, "A PEFT folder: the gradients are its");
  command->add_option(
      "--reference", flags->reference,
      "As for compare, where beta is not 0 and the file has no log-probabilities of a reference");
  command->add_option("--clip-max", flags->bounds.most, "TRL's vllm_importance_sampling_clip_max; inf: none")
      ->capture_default_str();
  command->add_option("--clip-min", flags->bounds.least, "TRL's vllm_importance_sampling_clip_min")
      ->capture_default_str();
  set_action(*command, flags, action, run_rollout);
}

}  // namespace streambp::verify
