// `streambp-verify sweep`.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/ranges.h>
#include <map>

#include "bench/cli/command_line.h"
#include "bench/cli/limits.h"
#include "streambp/backprop/method.h"
#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/objective/objective.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/equality/batches.h"
#include "verify/equality/equality.h"

namespace streambp::verify {
namespace {

/// Of the sweep's long sequence, whose windows cross tiles of the CPU's attention kernel (72 keys).
constexpr int64_t kWindowLength = 163;
/// The reference holds every score of a sequence in float64, for each layer and head.
constexpr int64_t kMaxLength = 2048;

struct SweepFlags : CommonFlags {
  std::string families, model, methods, objectives, settings, tunings, batches, lengths, chunks, head_chunks;
  std::string dtype = "float64";
  std::string device = "cpu";
  std::string part, config, rows;
  bool alone = false;
  std::map<std::string, std::string> run;  // of setting_kinds(), those that are given
  int64_t micro_batches = 1;
  int jobs = 1;
  uint64_t seed = 0;
  bool quick = false;
};

constexpr const char* kSweepExamples = R"(Examples:
  streambp-verify sweep --quick --jobs 4
  streambp-verify sweep --family qwen3,gemma3 --objective dpo --set beta=0.3,loss_type=ipo --tuning lora
  streambp-verify sweep --model qwen3-tiny --method streambp --batch packed --seq-len 37 --chunk 7 --head-chunk 3
  streambp-verify sweep --model gemma3-tiny --config '{"sliding_window": 3}' --objective sft --tuning full --batch documents \
    --rows 3+5,1+0,2+7 --method streambp --chunk 4 --alone --every 2 --offload host

A failure is printed with the command line that repeats it.
)";

std::vector<std::string> sweep_models(const SweepFlags& flags) {
  if (!flags.model.empty()) return {flags.model};
  std::vector<std::string> models = words_or(flags.families, "--family", equality_families());
  require_known(models, "--family", equality_families());
  for (std::string& model : models) model = equality_preset(model);
  return models;
}

/// "3+7,1+0": prompts and completions.
std::vector<RowLengths> parse_rows(const std::string& list) {
  constexpr const char* kFlag = "--rows";
  std::vector<RowLengths> rows;
  for (const std::string& word : parse_words(list, kFlag)) {
    const size_t plus = word.find('+');
    if (plus == std::string::npos) throw InputError("{} '{}': expected PROMPT+COMPLETION", kFlag, word);
    const RowLengths row{parse_integers(word.substr(0, plus), kFlag, 1).front(),
                         parse_integers(word.substr(plus + 1), kFlag, 0).front()};
    if (row.prompt > kMaxLength || row.completion > kMaxLength || row.tokens() > kMaxLength)
      throw InputError("{} '{}': expected at most {} tokens, for the reference", kFlag, word, kMaxLength);
    rows.push_back(row);
  }
  return rows;
}

void read_lengths(const SweepFlags& flags, EqualityOptions& options) {
  if (!flags.rows.empty()) {
    if (!flags.lengths.empty()) throw InputError("--rows: not with --seq-len, whose rows are made up");
    options.rows = parse_rows(flags.rows);
    options.lengths = {0};
    return;
  }
  const std::string lengths = !flags.lengths.empty() ? flags.lengths : flags.quick ? "11" : "5,37";
  options.lengths = parse_integers(lengths, "--seq-len", 1);
  const int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  if (longest > kMaxLength)
    throw InputError("--seq-len {}: expected at most {} tokens, for the reference", longest, kMaxLength);
  if (flags.lengths.empty()) {
    options.window_length = kWindowLength;
  } else {
    options.padded_length = longest;
  }
}

/// The settings of --alone. Throws InputError for those that a method does not take.
void read_run(const SweepFlags& flags, EqualityOptions& options) {
  if (!flags.alone) {
    for (const SettingKind& kind : setting_kinds()) {
      if (flags.run.contains(kind.name))
        throw InputError("{}: a setting of a run by itself, expected --alone with it", kind.flag);
    }
    if (flags.micro_batches != 1) throw InputError("--micro-batches: expected --alone with it");
    return;
  }
  if (flags.micro_batches < 1 || flags.micro_batches > kMaxLength)
    throw InputError("--micro-batches {}: expected 1 to {}", flags.micro_batches, kMaxLength);
  options.alone.emplace();
  options.micro_batches = flags.micro_batches;
  for (const SettingKind& kind : setting_kinds()) {
    const auto given = flags.run.find(kind.name);
    if (given != flags.run.end()) set_setting(kind, *options.alone, given->second);
  }
  for (const std::string& method : options.methods) {
    Settings settings = *options.alone;
    settings.method = parse_method(method);
    check_settings(settings);
  }
}

int run_sweep(const SweepFlags& flags) {
  check_jobs(flags.jobs, flags);
  open_checked_device(flags.device, /*repeats_bits=*/true);
  require_known({flags.dtype}, "--dtype", {"float64"});
  EqualityOptions options;
  options.models = sweep_models(flags);
  options.methods = words_or(flags.methods, "--method", method_names());
  options.objectives = words_or(flags.objectives, "--objective", objective_names());
  options.settings = parse_settings(flags.settings, "--set");
  if (!options.settings.empty() && options.objectives.size() != 1)
    throw InputError("--set: expected a single --objective with it, got {}", options.objectives.size());
  for (const std::string& name : options.objectives) complete_options(objective_kind(name), options.settings);
  options.tunings = words_or(flags.tunings, "--tuning", equality_tuning_names());
  require_known(options.tunings, "--tuning", equality_tuning_names());
  options.batches = words_or(flags.batches, "--batch", equality_batch_names());
  require_known(options.batches, "--batch", equality_batch_names());
  read_lengths(flags, options);
  options.config = flags.config;
  if (!flags.config.empty()) {
    for (const std::string& model : options.models) equality_config(model, flags.config);
  }
  if (!flags.chunks.empty()) options.chunks = parse_chunks(flags.chunks, "--chunk");
  if (!flags.head_chunks.empty()) options.head_chunks = parse_integers(flags.head_chunks, "--head-chunk", 1);
  read_run(flags, options);
  const Part part = parse_part(flags.part);
  options.part_index = part.index;
  options.part_count = part.count;
  options.jobs = flags.jobs;
  options.seed = flags.seed;
  options.quick = flags.quick;
  options.json = flags.json;
  return run_equality(options);
}

void add_run_flags(CLI::App& command, const std::shared_ptr<SweepFlags>& flags) {
  command.add_flag("--alone", flags->alone,
                   "One run of each method, chunk (or auto) and head chunk (or auto), without variants, by "
                   "the settings that follow");
  for (const SettingKind& kind : setting_kinds()) {
    if (kind.name == "chunk" || kind.name == "head_chunk") continue;  // lists of every sweep
    const std::string help = "Of --alone: " + kind.help;
    if (kind.type == SettingType::kSwitch) {
      command.add_flag_callback(
          kind.flag, [flags, &kind] { flags->run[kind.name] = "true"; }, help);
    } else {
      command.add_option_function<std::string>(
          kind.flag, [flags, &kind](const std::string& text) { flags->run[kind.name] = text; }, help);
    }
  }
  command.add_option("--micro-batches", flags->micro_batches,
                     "Of --alone: as many parts of the batch, whose gradients are added up, as well");
}

}  // namespace

void add_sweep_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<SweepFlags>();
  CLI::App* const command = app.add_subcommand(
      "sweep", "All methods on random small models: equal to standard and to the reference");
  command->footer(fmt::format("{}\nA sequence of --seq-len has at most {} tokens.\n{}\n{}", kSweepExamples,
                              kMaxLength, describe_limits(), kExitCodes));
  const auto list = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help);
  };
  list("--family", flags->families,
       fmt::format("Small models: {} (default: all)", fmt::join(equality_families(), ", ")));
  list("--model", flags->model, "A folder or a preset instead");
  list("--config", flags->config, "Keys of config.json in place of the presets', as a JSON object");
  list("--method", flags->methods, fmt::format("{} (default: all)", fmt::join(method_names(), ", ")));
  list("--objective", flags->objectives,
       fmt::format("{} (default: all)", fmt::join(objective_names(), ", ")));
  list("--set", flags->settings,
       "Options of a single objective, as beta=0.1,loss_type=ipo (default: several, in turn)")
      ->join(',');
  list("--tuning", flags->tunings, "full, lora (default: both)");
  list(
      "--batch", flags->batches,
      "single, three, short, masked, unscored, packed, frozen (of sft); left, right, none (padding, of every "
      "objective), documents (one packed row, of sft, distill, pairs and kto) (default: all)");
  list("--seq-len", flags->lengths,
       "Tokens of a batch's longest sequence (default: 5,37, and 13 for left, right, none)");
  list("--rows", flags->rows,
       "Instead: tokens of each row's prompt and completion, as 3+7,1+0 (left, right, none, documents)");
  list("--chunk", flags->chunks,
       "Chunks, of methods that have them (default: 1 and those around the batch's boundaries)");
  list("--head-chunk", flags->head_chunks, "Chunks of the LM head (default: 1, 3 and all)");
  add_run_flags(*command, flags);
  list("--dtype", flags->dtype, "float64")->capture_default_str();
  add_device_flag(*command, flags->device);
  add_seed_flag(*command, "--seed", flags->seed, "Of weights and tokens");
  command->add_flag("--quick", flags->quick, "Shorter sequences, fewer chunks and combinations");
  add_jobs_flag(*command, flags->jobs);
  add_part_flag(*command, flags->part, "row");
  set_action(*command, flags, action, run_sweep);
}

}  // namespace streambp::verify
