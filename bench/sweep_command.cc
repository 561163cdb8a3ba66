#include "bench/sweep_command.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <memory>

#include "bench/cell.h"
#include "bench/sweep.h"
#include "streambp/driver/command_line.h"
#include "streambp/driver/environment.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"

namespace streambp {
namespace {

/// The flags whose values are more than one number or word, as typed.
struct Typed {
  std::string objectives = "sft";
  std::string methods = fmt::format("{}", fmt::join(method_names(), ","));
  std::string lengths = "512,1024,2048";
  std::string batches = "1";
  std::string chunks = "auto";
  std::string head_chunk = "auto";
  std::string head = "auto";
  std::string dtype = "float32";
  std::string gradient_dtype = "same";
  std::string memory_limit;
  std::string tokens;
  std::string freeze;
  std::string dump_gradients;
  std::string objective_options;
  std::string lora_targets = "all-linear";
  std::string adapter;
  int64_t lora_rank = 0;
  double lora_alpha = 0.0;
  bool lora_rslora = false;
  std::string out = "out/sweep";
  double divisor = 0.0;
  SweepOptions options;
};

std::string objective_names() {
  std::vector<std::string> names;
  for (const ObjectiveKind& kind : objective_kinds()) names.push_back(kind.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

/// What each objective is and which options it has.
std::string describe_objectives() {
  std::string text = "Objectives and their options (--set):\n";
  for (const ObjectiveKind& kind : objective_kinds()) {
    text += fmt::format("  {}: {} ({})\n", kind.name, kind.summary, kind.source);
    for (const Option& option : kind.options) {
      text += fmt::format("    {}={}  {}{}\n", option.name, option.default_value, option.help,
                          option.choices.empty() ? "" : fmt::format(": {}", fmt::join(option.choices, ", ")));
    }
  }
  return text;
}

constexpr const char* kExamples = R"(Examples:
  streambp-bench sweep --seq-len 512,2048,8192 --chunk auto,512 --out out/cpu
  streambp-bench sweep --model path/to/Qwen3-0.6B --tokens tokens.safetensors --method streambp --out out/mine
  streambp-bench sweep --model qwen3-8b --dtype bfloat16 --device meta --seq-len 32768 --out out/predicted
  streambp-bench sweep --objective sft,dpo,grpo,ppo --lora-rank 32 --seq-len 4096 --set beta=0.1 --out out/rl
  streambp-bench sweep --seq-len 8192 --memory-limit 2GB --resume --out out/cpu

Exit codes: 0 all good; 1 a cell failed; 2 bad usage or input; 3 a cell ran out of memory and nothing else went wrong.)";

/// A range that is named in errors but not in --help, where it would crowd out the text.
CLI::Validator from_to(int least, int most) {
  return CLI::Range(least, most).description("");
}

std::optional<bool> parse_head(const std::string& head) {
  if (head == "auto") return std::nullopt;
  if (head == "full" || head == "streamed") return head == "streamed";
  throw InputError("--head '{}': expected auto, full or streamed", head);
}

at::ScalarType parse_gradient_dtype(const std::string& name, at::ScalarType dtype) {
  if (name == "same") return dtype;
  if (name != "float32") throw InputError("--grad-dtype '{}': expected same or float32", name);
  if (dtype == at::kDouble) throw InputError("--grad-dtype float32: narrower than --dtype float64");
  return at::kFloat;
}

/// "beta=0.1,loss_type=ipo" by name; each must be an option of one of the objectives, which check its value.
std::map<std::string, std::string> parse_objective_options(const std::string& list,
                                                           const std::vector<std::string>& objectives) {
  const std::map<std::string, std::string> given = parse_settings(list, "--set");
  std::map<std::string, std::string> unused = given;
  std::vector<std::string> known;
  for (const std::string& name : objectives) {
    const ObjectiveKind& kind = objective_kind(name);
    complete_options(kind, options_of(name, given));
    for (const Option& option : kind.options) {
      unused.erase(option.name);
      known.push_back(option.name);
    }
  }
  if (!unused.empty()) {
    throw InputError("--set {}: no option of {}; expected some of {}", unused.begin()->first,
                     fmt::join(objectives, ", "), fmt::join(known, ", "));
  }
  return given;
}

SweepOptions read_options(const CLI::App& command, const Typed& typed) {
  SweepOptions options = typed.options;
  const auto given = [&](const char* flag) { return command.count(flag) > 0; };
  options.objectives = parse_words(typed.objectives, "--objective");
  options.objective_options = parse_objective_options(typed.objective_options, options.objectives);
  options.methods.clear();
  for (const std::string& method : parse_words(typed.methods, "--method"))
    options.methods.push_back(parse_method(method));
  options.lengths = parse_integers(typed.lengths, "--seq-len", 1);
  options.batches = parse_integers(typed.batches, "--batch", 1);
  options.chunks = parse_chunks(typed.chunks, "--chunk");
  const std::vector<int64_t> head_chunks = parse_chunks(typed.head_chunk, "--head-chunk");
  if (head_chunks.size() != 1)
    throw InputError("--head-chunk '{}': expected one number, or auto", typed.head_chunk);
  options.head_chunk = head_chunks.front();
  options.stream_head = parse_head(typed.head);
  options.dtype = parse_dtype(typed.dtype);
  options.gradient_dtype = parse_gradient_dtype(typed.gradient_dtype, options.dtype);
  if (given("--memory-limit")) options.memory_limit = parse_bytes(typed.memory_limit, "--memory-limit");
  if (given("--tokens")) options.tokens = typed.tokens;
  if (given("--freeze")) options.freeze = parse_words(typed.freeze, "--freeze");
  if (given("--dump-gradients")) options.dump_gradients = typed.dump_gradients;
  if (given("--divisor")) {
    if (!(typed.divisor > 0.0 && std::isfinite(typed.divisor))) {
      throw InputError("--divisor {}: expected a positive number", typed.divisor);
    }
    options.objective_options["divisor"] = fmt::format("{}", typed.divisor);
  }
  if (given("--adapter")) options.adapter = typed.adapter;
  if (given("--lora-rank")) {
    LoraConfig lora;
    lora.r = typed.lora_rank;
    lora.lora_alpha = given("--lora-alpha") ? typed.lora_alpha : static_cast<double>(typed.lora_rank);
    lora.use_rslora = typed.lora_rslora;
    lora.target_modules = typed.lora_targets == "all-linear"
                              ? std::vector<std::string>{kAllLinear}
                              : parse_words(typed.lora_targets, "--lora-targets");
    options.lora = lora;
  }
  options.out = typed.out;
  return options;
}

}  // namespace

void add_sweep_command(CLI::App& app, std::function<int()>& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<Typed>();
  SweepOptions& options = typed->options;
  options.threads = usable_cores();
  options.arguments.assign(argv, argv + argc);
  CLI::App* const command =
      app.add_subcommand("sweep", "Memory and time of methods x lengths x chunks; lists are comma-separated");
  command->footer(describe_objectives() + "\n" + kExamples);
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help)->capture_default_str();
  };

  text("--model", options.model, "A Hugging Face folder (config.json, safetensors) or a preset");
  text("--objective", typed->objectives, "Objectives: " + objective_names());
  text("--set", typed->objective_options, "Options of the objectives, as beta=0.1,loss_type=ipo (below)");
  text("--method", typed->methods, "Methods: standard, checkpoint, streambp");
  CLI::Option* const lengths = text("--seq-len", typed->lengths, "Tokens of a sequence");
  CLI::Option* const batches = text("--batch", typed->batches, "Sequences in a batch");
  text("--tokens", typed->tokens,
       "A safetensors file with input_ids, and optionally attention_mask, labels, position_ids; in place of "
       "--seq-len and --batch")
      ->excludes(lengths)
      ->excludes(batches);
  text("--chunk", typed->chunks, "Tokens of a streambp chunk, or auto; the other methods have none");
  text("--head", typed->head,
       "LM head: full logits, streamed, or auto (streambp streams it, the others don't)");
  text("--head-chunk", typed->head_chunk, "Scored tokens of a streamed head's chunk, or auto");
  text("--dtype", typed->dtype, "float32, float64 or bfloat16");
  text("--grad-dtype", typed->gradient_dtype,
       "Dtype that parameter gradients are summed in: same (as --dtype) or float32");
  text("--freeze", typed->freeze, "Parameters with any of these in their names get no gradient");
  CLI::Option* const rank = command->add_option("--lora-rank", typed->lora_rank,
                                                "Train LoRA adapters of this rank and freeze the rest");
  command
      ->add_option("--lora-alpha", typed->lora_alpha,
                   "Scale of the adapters times their rank (default: the rank)")
      ->needs(rank);
  text("--lora-targets", typed->lora_targets, "Modules with an adapter, or all-linear")->needs(rank);
  command
      ->add_flag("--lora-rslora", typed->lora_rslora, "Scale by alpha / sqrt(rank) instead of alpha / rank")
      ->needs(rank);
  text("--adapter", typed->adapter, "A PEFT folder with adapters to train")->excludes(rank);
  text("--reference", options.reference,
       "A folder or preset whose log-probabilities dpo, kto, grpo or ppo compare with (with LoRA: default "
       "the base)");
  command->add_flag(
      "--release-reference", options.release_reference,
      "Free the reference model's weights before the passes (default: they stay, as in training)");
  text("--teacher", options.teacher, "A folder or preset to distil from");
  command
      ->add_option("--micro-batches", options.micro_batches,
                   "Cut each batch into this many and add up their gradients")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  command->add_option("--divisor", typed->divisor,
                      "What the summed loss is divided by (default: the number of scored tokens)");
  text("--device", options.device,
       "cpu, cuda or meta (meta: shapes only, memory is predicted and nothing is timed)");
  command->add_option("--threads", options.threads, "Threads of the CPU (default: every core)")
      ->check(from_to(1, 4096));
  command->add_option("--repeats", options.repeats, "Timed passes of each cell; methods take turns")
      ->capture_default_str()
      ->check(from_to(1, 1000000));
  command->add_option("--warmup", options.warmup, "Untimed passes of each method, at the first length")
      ->capture_default_str()
      ->check(from_to(0, 1000000));
  command->add_option("--seed", options.seed, "Of random weights and tokens")->capture_default_str();
  text("--memory-limit", typed->memory_limit,
       "Bytes of tensors, such as 2GB or 512MiB, past which a run counts as out of memory (default on the "
       "CPU: 95 % of what is free)");
  text("--dump-gradients", typed->dump_gradients,
       "Write the gradients as safetensors under Hugging Face names; for a sweep of one cell");
  text("--out", typed->out, "Folder for results.jsonl");
  command->add_flag("--resume", options.resume, "Run only what --out has no record of, and what failed");
  command->add_flag("--json", options.json, "Print the records instead of the table");
  command->add_flag("--quiet", options.quiet, "No progress on the terminal");

  command->callback([typed, command, &action] {
    action = [typed, command] { return run_sweep(read_options(*command, *typed)); };
  });
}

}  // namespace streambp
