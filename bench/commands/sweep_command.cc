#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/limits.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/sweep/budget.h"
#include "bench/sweep/sweep.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

/// The flags of this command alone whose values are more than one number or word, as typed.
struct TypedSweep {
  std::string lengths = "512,1024,2048";
  std::string repeats = "3";
  std::string memory_limit;
  std::string budget;
  std::string host_budget;
  std::string tokens;
  std::string first_labels = "refuse";
  std::string documents = "sdpa";
  std::string dump_gradients;
  std::string trace, snapshot, timeline;
  std::string out = "out/sweep";
  double divisor = 0.0;
  SweepOptions options;
};

constexpr const char* kSweepExamples = R"(Examples:
  streambp-bench sweep --seq-len 512,2048,8192 --chunk auto,512 --out out/cpu
  streambp-bench sweep --model path/to/Qwen3-0.6B --tokens tokens.safetensors --method streambp --out out/mine
  streambp-bench sweep --model qwen3-8b --dtype bfloat16 --device meta --seq-len 32768 --out out/predicted
  streambp-bench sweep --objective sft,dpo,grpo,ppo --lora-rank 32 --seq-len 4096 --set beta=0.1 --out out/rl
  streambp-bench sweep --seq-len 8192 --memory-limit 2GB --resume --out out/cpu
  streambp-bench sweep --method auto --budget 80GiB --model qwen3-8b --dtype bfloat16 --device meta --seq-len 65536 --out out/auto

--method auto dry-runs every method with every chunk, head and further setting whose flag is not given, for each objective, length and batch, and runs the cheapest in time, by an estimate,
that fits the budget. A line on stderr and the record's `choice` say why, and what else was considered.

Exit codes: 0 all good; 1 a cell failed; 2 bad usage or input, or lost output; 3 a cell ran out of memory and nothing else went wrong.)";

/// What --method auto has to fit.
void read_budgets(const CLI::App& command, const TypedSweep& typed, SweepOptions& options) {
  for (const char* flag : {"--budget", "--host-budget"}) {
    if (command.count(flag) > 0 && !options.picks_method)
      throw InputError("{}: what --method auto has to fit, expected it with that", flag);
  }
  if (command.count("--budget") > 0) options.budget = parse_budget(typed.budget, options.device).usable();
  if (command.count("--host-budget") == 0) return;
  options.host_budget = parse_bytes(typed.host_budget, "--host-budget");
  if (options.device == "cpu") throw InputError("--host-budget: with --device cpu there is one memory only");
}

/// Throws where --prompt would not be what the made-up sequences have.
void check_prompt(const SweepOptions& options) {
  if (options.prompt == 0) return;
  if (options.tokens)
    throw InputError("--prompt {}: of made-up sequences, expected none with --tokens", options.prompt);
  for (const std::string& name : options.objectives) {
    const bool pairs = has_pairs(objective_kind(name).layout);
    for (const int64_t length : options.lengths) {
      const int64_t most = length / (pairs ? 4 : 2);
      if (options.prompt > most) {
        throw InputError("--prompt {}: expected at most {}, half of {} of {} tokens (--seq-len)",
                         options.prompt, most, pairs ? "each sequence of a pair" : "a sequence", length);
      }
    }
  }
}

/// 0 for auto.
int64_t read_repeats(const std::string& text) {
  if (text == "auto") return 0;
  const std::vector<int64_t> numbers = parse_integers(text, "--repeats", 1);
  constexpr int64_t kMost = 1000000;
  if (numbers.size() != 1 || numbers[0] > kMost)
    throw InputError("--repeats {}: expected a number from 1 to {}, or auto", text, kMost);
  return numbers[0];
}

SweepOptions read_options(const CLI::App& command, const RunFlags& flags, const TypedSweep& typed) {
  SweepOptions options = typed.options;
  const auto given = [&](const char* flag) { return command.count(flag) > 0; };
  flags.read(options);
  options.lengths = parse_integers(typed.lengths, "--seq-len", 1);
  for (const int64_t batch : options.batches) {
    for (const int64_t length : options.lengths) {
      if (length > kMaxTokens / batch) {
        throw InputError(
            "--seq-len {} with --batch {}: expected at most {} tokens in a batch: a smaller "
            "--batch or --seq-len",
            length, batch, kMaxTokens);
      }
    }
  }
  options.repeats = read_repeats(typed.repeats);
  if (given("--memory-limit")) options.memory_limit = parse_bytes(typed.memory_limit, "--memory-limit");
  read_budgets(command, typed, options);
  if (given("--tokens") && typed.tokens.empty())
    throw InputError("--tokens '': expected a safetensors file with input_ids");
  if (given("--tokens")) options.tokens = typed.tokens;
  check_prompt(options);
  options.first_labels = parse_first_labels(typed.first_labels);
  options.documents = parse_documents(typed.documents);
  if (given("--dump-gradients")) options.dump_gradients = typed.dump_gradients;
  if (given("--trace")) options.trace = typed.trace;
  if (given("--snapshot")) options.snapshot = typed.snapshot;
  if (given("--timeline")) options.timeline = typed.timeline;
  if (given("--divisor")) {
    if (!(typed.divisor > 0.0 && std::isfinite(typed.divisor))) {
      throw InputError("--divisor {}: expected a positive number", typed.divisor);
    }
    if (options.objective_options.contains("divisor"))
      throw InputError("--divisor {}: given with --set divisor={}, expected one of them", typed.divisor,
                       options.objective_options.at("divisor"));
    options.objective_options["divisor"] = fmt::format("{}", typed.divisor);
  }
  options.out = typed.out;
  return options;
}

}  // namespace

void add_sweep_command(CLI::App& app, Action& action, int argc, const char* const* argv,
                       const std::function<int(const SweepOptions&)>& run) {
  const auto typed = std::make_shared<TypedSweep>();
  SweepOptions& options = typed->options;
  options.threads = default_threads();
  options.arguments.assign(argv, argv + argc);
  CLI::App* const command =
      app.add_subcommand("sweep", "Memory and time of methods x lengths x chunks; lists are comma-separated");
  command->footer(describe_limits() + "\n" + kSweepExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"qwen3-cpu", "float32"});
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help)->capture_default_str();
  };

  CLI::Option* const lengths = text("--seq-len", typed->lengths, "Tokens of a sequence");
  text("--tokens", typed->tokens,
       "A safetensors file with input_ids, and optionally attention_mask, labels, position_ids (which start "
       "anew at each document of a packed row without attention_mask); in place of --seq-len and --batch")
      ->excludes(lengths)
      ->excludes(command->get_option("--batch"));
  text("--first-labels", typed->first_labels,
       "Labels of --tokens that padding on their left would predict: refuse, or ignore, which drops and "
       "counts them; ignore-all: those of padding as well (labels that are input_ids)");
  text("--documents", typed->documents,
       "How position_ids of --tokens tell documents of a row apart: sdpa, without an attention_mask, as "
       "transformers' sdpa, eager and flex attention; flash, in one row without padding, as its flash "
       "attention");
  command->add_option("--divisor", typed->divisor,
                      "What the summed loss is divided by (default: the number of scored tokens)");
  text("--device", options.device,
       "cpu, cuda, cuda:1, or meta and meta:cuda (shapes only: memory is predicted as the CPU's or a GPU's "
       "kernels would take it, and nothing is timed)");
  command->add_option("--threads", options.threads,
                      "Threads of the CPU (default: OMP_NUM_THREADS, else every core)");
  text("--repeats", typed->repeats,
       fmt::format("Timed passes of each cell; methods take turns. auto: until the time relative to "
                   "checkpoint is known to {:.0f} % with "
                   "95 %, {} to {} passes",
                   100.0 * kKnownTime, kFewestRounds, kMostRounds));
  command
      ->add_option("--warmup", options.warmup,
                   "Untimed passes of each method, at the first length; on cuda of each cell")
      ->capture_default_str()
      ->check(from_to(0, 1000000));
  text("--memory-limit,--memory-cap", typed->memory_limit,
       "Bytes of tensors, such as 2GB or 512MiB, past which a run counts as out of memory (default on the "
       "CPU: 95 % of what is free); on cuda of what the allocator holds, so that one GPU stands for a "
       "smaller one");
  text("--budget", typed->budget,
       "--method auto: bytes that the run has to fit, such as 80GB or 80GiB, or a card by name, such as "
       "h100-80 "
       "(default: --memory-limit, else what the device has free)");
  text("--host-budget", typed->host_budget,
       "--method auto: memory of the host in addition to the device's; with it, --offload host is tried too");
  command->add_flag(
      "--deterministic", options.deterministic,
      "On cuda (and meta:cuda, which counts its memory): equal passes give equal bits. "
      "FlashAttention alone serves attention, with more float32 sums in its backward pass; "
      "gpu_seconds of the same cells with and without say what that costs. Sums whose order matters are "
      "named in streambp/ops/README.md");
  text("--dump-gradients", typed->dump_gradients,
       "Write the gradients as safetensors under Hugging Face names; for a sweep of one cell");
  text("--trace", typed->trace,
       "Write memory over time, layers and chunks as JSON for ui.perfetto.dev; for a sweep of one cell");
  text("--snapshot", typed->snapshot,
       "The same as a pickle for pytorch.org/memory_viz, each block in its scope's colour");
  text("--timeline", typed->timeline, "The same as CSV, which scripts/plot.py --timeline draws");
  text("--out", typed->out, "Folder for results.jsonl");
  command->add_flag("--resume", options.resume, "Run only what --out has no record of, and what failed");
  command->add_flag("--json", options.json, "Print the records instead of the table");
  command->add_flag("--quiet", options.quiet, "No progress on the terminal");

  command->callback([typed, flags, command, run, &action] {
    action = [typed, flags, command, run] { return run(read_options(*command, *flags, *typed)); };
  });
}

}  // namespace streambp::bench
