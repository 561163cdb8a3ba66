#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/train/trainer.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

struct TypedTrain {
  TrainOptions options;
  std::string text = "README.md";
  std::string tokens;
  std::string out = "out/train";
};

constexpr const char* kTrainExamples = R"(Examples:
  streambp-bench train --model qwen3-tiny --text README.md --steps 50 --out out/train
  streambp-bench train --model qwen3-tiny --text README.md --objective dpo --lora-rank 4 --learning-rate 1e-3
    --schedule cosine --warmup-steps 10 --steps 100 --save-every 20 --out out/train-dpo
  streambp-bench train --dtype bfloat16 --master-weights --learning-rate 1e-5 --steps 100 --out out/train-half
  streambp-bench train --model out/qwen3-cpu --tokens batch.safetensors --method streambp --every 2 --out out/mine

The bytes of --text are the tokens (of a vocabulary of fewer than 256 tokens, printable characters); each step takes windows
of --seq-len from it that --data-seed and the step's number choose. For dpo and its kin a window is a prompt and the chosen
completion, and the rejected completion has its tokens in random order; what the policy was before training is the
reference, with adapters the base. --tokens is a batch that every step takes whole.

--out gets results.jsonl (a record of each step), state.safetensors (what --resume goes on from, with the same bits as if it
had not stopped) and at the end model/, a Hugging Face folder, or a PEFT folder of adapters.

Exit codes: 0 trained; 1 loss or gradients are no longer finite; 2 bad usage or input; 3 out of memory.)";

void require_one(size_t count, const char* flag) {
  if (count != 1) throw InputError("{}: expected one, a run has the same throughout", flag);
}

TrainOptions read_options(const CLI::App& command, const RunFlags& flags, const TypedTrain& typed) {
  TrainOptions options = typed.options;
  SweepOptions& run = options.run;
  flags.read(run);
  if (run.picks_method) throw InputError("--method auto: expected a method by name");
  require_one(run.methods.size(), "--method");
  require_one(run.objectives.size(), "--objective");
  require_one(run.batches.size(), "--batch");
  require_one(run.chunks.size(), "--chunk");
  run.repeats = 1;
  run.out = typed.out;
  run.lengths = {options.seq_len};
  if (run.device == "meta" || run.device.starts_with("meta:"))
    throw InputError("--device {}: tensors without values can't be trained, expected cpu or cuda",
                     run.device);
  if (run.setup.weights_on_host)
    throw InputError(
        "--weights host: its steps are those of --fuse-optimizer, expected resident weights here");
  if (command.count("--tokens") > 0) {
    run.tokens = typed.tokens;
  } else {
    for (const std::string& file : parse_words(typed.text, "--text")) options.text.emplace_back(file);
  }
  const double clip = options.clip_norm;
  if (!(clip >= 0.0 && std::isfinite(clip)))
    throw InputError("--clip-norm {}: expected a number, 0 for none", clip);
  if (run.setup.dtype != at::kDouble && run.setup.dtype != at::kFloat &&
      options.optimizer.learning_rate > 0.0)
    options.optimizer.dtype = at::kFloat;
  parse_optimizer("none", 32, options.optimizer.master_weights, run.setup.dtype);
  make_optimizer(options.optimizer);
  learning_rate_of(options, 1);
  if (options.warmup_steps > options.steps)
    throw InputError("--warmup-steps {}: expected at most --steps {}", options.warmup_steps, options.steps);
  return options;
}

}  // namespace

void add_train_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<TypedTrain>();
  TrainOptions& options = typed->options;
  options.optimizer.name = "adamw";
  options.run.threads = default_threads();
  options.run.arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "train", "Train a model by any method: AdamW, checkpoints, a Hugging Face folder out");
  command->footer(kTrainExamples);
  const auto flags = std::make_shared<RunFlags>(
      *command,
      RunFlags::Defaults{.model = "qwen3-tiny", .dtype = "float32", .methods = "streambp", .trains = true});
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help)->capture_default_str();
  };
  const auto number = [&](const char* flag, auto& value, const std::string& help) {
    return command->add_option(flag, value, help)->capture_default_str();
  };
  CLI::Option* const files = text("--text", typed->text, "Files whose bytes are the tokens");
  text("--tokens", typed->tokens, "A safetensors file with a batch, as sweep takes it, for every step")
      ->excludes(files)
      ->excludes(command->get_option("--batch"));
  number("--seq-len", options.seq_len, "Tokens of a sequence of --text")->check(from_to(4, 1 << 24));
  add_seed_flag(*command, "--data-seed", options.data_seed, "Of the windows of --text");
  number("--steps", options.steps, "Steps in all, those before --resume included")
      ->check(from_to(1, 100000000));
  text("--optimizer", options.optimizer.name, fmt::format("One of {}", fmt::join(optimizer_names(), ", ")));
  number("--learning-rate", options.optimizer.learning_rate, "The highest of the schedule");
  text("--schedule", options.schedule,
       "Of the learning rate after --warmup-steps: constant, linear or cosine, to 0");
  number("--warmup-steps", options.warmup_steps, "Steps in which the learning rate rises")
      ->check(from_to(0, 100000000));
  number("--beta1", options.optimizer.beta1, "All but sgd: of the mean of gradients");
  number("--beta2", options.optimizer.beta2, "All but sgd: of the mean of their squares");
  number("--weight-decay", options.optimizer.weight_decay, "All but sgd");
  command->add_flag("--master-weights", options.optimizer.master_weights,
                    "Steps are of a float32 copy of half-precision weights, which are rounded from it");
  number("--galore-rank", options.optimizer.rank, "Of the projection of galore and natural-galore")
      ->check(from_to(1, 1000000));
  number("--galore-history", options.optimizer.history,
         "Projected gradients that natural-galore keeps, each as large as one of its averages")
      ->check(from_to(1, 100000));
  number("--galore-damping", options.optimizer.damping,
         "Of natural-galore: added to the diagonal of the gradients' Fisher matrix");
  number("--clip-norm", options.clip_norm, "The most that the norm of all gradients may be; 0: as it is");
  text("--device", options.run.device, "cpu, cuda, cuda:1");
  number("--threads", options.run.threads, "Threads of the CPU");
  number("--save-every", options.save_every,
         "Steps from one state.safetensors to the next; 0: one at the end")
      ->check(from_to(0, 100000000));
  text("--out", typed->out, "Folder for records, state and model");
  command->add_flag("--resume", options.run.resume,
                    "Go on from the state in --out, or begin where there is none");
  command->add_flag("--quiet", options.run.quiet, "No progress on the terminal");
  command->callback([typed, flags, command, &action] {
    action = [typed, flags, command] { return run_training(read_options(*command, *flags, *typed)); };
  });
}

}  // namespace streambp::bench
