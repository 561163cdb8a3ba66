// streambp-verify: is it exact? sweep | goldens | gradcheck | compare | long | precision
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <ATen/Parallel.h>

#include "streambp/backprop/method.h"
#include "streambp/cli/command_line.h"
#include "streambp/runtime/device.h"
#include "streambp/cli/limits.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "streambp/objective/objective.h"
#include "verify/tests/streambp/ops/checked_device.h"
#include "verify/compare/compare.h"
#include "verify/equality/equality.h"
#include "verify/golden_cases/goldens.h"
#include "verify/gradcheck.h"
#include "verify/long_command.h"
#include "verify/precision.h"

namespace {

using namespace streambp;
using namespace streambp::verify;

/// Of the sweep's long sequence, whose windows cross tiles of the CPU's attention kernel (72 keys).
constexpr int64_t kWindowLength = 163;
/// The reference holds every score of a sequence in float64, for each layer and head.
constexpr int64_t kMaxSweepLength = 2048;
constexpr int kMaxThreads = 4096;

/// Flags as they come; lists are cut after parsing, so that their errors are ours.
struct Flags {
  std::vector<std::string> folders;
  std::string families, model, methods, batches, lengths, chunks, head_chunks;
  std::string objectives, settings, tunings;
  std::string adapter, teacher, reference;
  std::string dtype;
  std::string device = "cpu";
  std::string tokens, gradients, compute_dtype, tolerance = "auto";
  std::string first_labels = "refuse";
  std::optional<double> divisor;
  double limit = 1e-10;
  int64_t batches_of = 24;
  uint64_t seed = 0;
  std::optional<int> threads;
  bool quick = false;
  bool json = false;
  bool diagnose = false;
  std::string diagnose_chunks;
};

void require_choice(const std::string& value, const std::string& what, const std::string& only) {
  if (value != only) throw InputError("{} '{}': expected {}", what, value, only);
}

void require_known(const std::vector<std::string>& words, const std::string& what,
                   const std::vector<std::string>& known) {
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) == known.end())
      throw InputError("{} '{}': expected one of {}", what, word, fmt::join(known, ", "));
  }
}

std::vector<std::string> words_or(const std::string& list, const std::string& what,
                                  std::vector<std::string> otherwise) {
  return list.empty() ? otherwise : parse_words(list, what);
}

/// Families and their variants that have a preset for tests: NAME-tiny.
std::vector<std::string> sweep_families() {
  constexpr std::string_view kTiny = "-tiny";
  std::vector<std::string> families;
  for (const std::string& name : preset_names()) {
    if (name.ends_with(kTiny)) families.push_back(name.substr(0, name.size() - kTiny.size()));
  }
  return families;
}

std::vector<std::string> sweep_models(const Flags& flags) {
  if (!flags.model.empty()) return {flags.model};
  std::vector<std::string> models = words_or(flags.families, "--family", sweep_families());
  require_known(models, "--family", sweep_families());
  for (std::string& model : models) model += "-tiny";
  return models;
}

/// The models of checks with values to compare.
void open_checked_device(const Flags& flags) {
  checked_device() = open_device(flags.device);
  if (checked_device().is_meta()) throw InputError("--device {}: expected cpu or cuda", flags.device);
}

int sweep(const Flags& flags) {
  open_checked_device(flags);
  require_choice(flags.dtype.empty() ? "float64" : flags.dtype, "--dtype", "float64");
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
  options.lengths =
      parse_integers(flags.lengths.empty() ? (flags.quick ? "11" : "5,37") : flags.lengths, "--seq-len", 1);
  for (const int64_t length : options.lengths) {
    if (length > kMaxSweepLength)
      throw InputError("--seq-len {}: expected at most {} tokens, for the reference", length,
                       kMaxSweepLength);
  }
  if (flags.lengths.empty()) options.window_length = kWindowLength;
  if (!flags.lengths.empty())
    options.padded_length = *std::max_element(options.lengths.begin(), options.lengths.end());
  if (!flags.chunks.empty()) options.chunks = parse_chunks(flags.chunks, "--chunk");
  if (!flags.head_chunks.empty()) options.head_chunks = parse_integers(flags.head_chunks, "--head-chunk", 1);
  options.seed = flags.seed;
  options.quick = flags.quick;
  options.json = flags.json;
  return run_equality(options);
}

int goldens(const Flags& flags) {
  open_checked_device(flags);
  if (!(flags.limit > 0.0)) throw InputError("--limit {}: expected a number above 0", flags.limit);
  GoldensOptions options;
  options.folders = flags.folders;
  options.methods = words_or(flags.methods, "--method", {});
  if (!flags.chunks.empty()) options.chunks = parse_chunks(flags.chunks, "--chunk");
  options.limit = flags.limit;
  options.json = flags.json;
  return run_goldens(options);
}

int compare(const Flags& flags) {
  CompareOptions options;
  options.model = flags.model;
  options.dtype = flags.dtype;
  options.tokens = flags.tokens;
  options.first_labels = parse_first_labels(flags.first_labels);
  options.gradients = flags.gradients;
  if (!flags.objectives.empty()) options.objective = flags.objectives;
  options.settings = parse_settings(flags.settings, "--set");
  options.adapter = flags.adapter;
  options.teacher = flags.teacher;
  options.reference = flags.reference;
  options.divisor = flags.divisor;
  if (flags.tolerance != "auto") {
    size_t end = 0;
    double tolerance = 0.0;
    try {
      tolerance = std::stod(flags.tolerance, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end != flags.tolerance.size() || !(tolerance > 0.0) || !std::isfinite(tolerance)) {
      throw InputError("--tolerance '{}': expected a number above 0, or auto", flags.tolerance);
    }
    options.tolerance = tolerance;
  }
  if (!flags.compute_dtype.empty()) options.compute_dtype = parse_dtype(flags.compute_dtype);
  if (!flags.chunks.empty()) options.chunk = parse_chunks(flags.chunks, "--chunk").front();
  options.seed = flags.seed;
  options.json = flags.json;
  options.diagnose = flags.diagnose || !flags.diagnose_chunks.empty();
  if (!flags.diagnose_chunks.empty())
    options.diagnose_chunks = parse_integers(flags.diagnose_chunks, "--diagnose-chunk", 1);
  return run_compare(options);
}

int precision(const Flags& flags) {
  open_checked_device(flags);
  PrecisionOptions options;
  options.subject.device = checked_device();
  if (!flags.model.empty()) options.subject.model = flags.model;
  if (!flags.objectives.empty()) options.subject.objective = flags.objectives;
  if (!flags.lengths.empty()) options.subject.seq_len = parse_integers(flags.lengths, "--seq-len", 4).front();
  if (flags.batches_of < 1) throw InputError("--repeats {}: expected 1 or more batches", flags.batches_of);
  options.subject.batches = flags.batches_of;
  options.subject.seed = flags.seed;
  options.methods = words_or(flags.methods, "--method", method_names());
  options.chunks = parse_chunks(flags.chunks.empty() ? "8,32" : flags.chunks, "--chunk");
  if (!flags.dtype.empty()) {
    require_known({flags.dtype}, "--dtype", {"float32", "bfloat16"});
    options.dtypes = {parse_dtype(flags.dtype)};
  }
  options.json = flags.json;
  return run_precision(options);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Checks that back-propagation is exact: against other people's numbers, between methods, and anyone's "
      "gradients.",
      "streambp-verify");
  app.require_subcommand(1);
  app.set_version_flag("--version", "streambp-verify " STREAMBP_VERSION "\n");
  Flags flags;
  std::function<int()> action;
  const auto command = [&](const char* name, const char* description, int (*run)(const Flags&)) {
    CLI::App* sub = app.add_subcommand(name, description);
    sub->add_flag("--json", flags.json, "One JSON object a line on stdout instead of a table");
    sub->add_option("--threads", flags.threads, "CPU threads (default: all)");
    sub->callback([&action, &flags, run] {
      action = [&flags, run] {
        if (const int threads = flags.threads.value_or(1); threads < 1 || threads > kMaxThreads)
          throw InputError("--threads {}: expected 1 to {}", threads, kMaxThreads);
        if (flags.threads) at::set_num_threads(*flags.threads);
        return run(flags);
      };
    });
    return sub;
  };

  CLI::App* sub =
      command("sweep", "All methods on random small models: equal to standard and to the reference", sweep);
  sub->add_option("--family", flags.families, "Small models: qwen3, qwen2, llama, llama-tied (default: all)");
  sub->add_option("--model", flags.model, "A folder or a preset instead");
  sub->add_option("--method", flags.methods, "Methods to check (default: all)");
  const std::string names = fmt::format("{}", fmt::join(objective_names(), ", "));
  sub->add_option("--objective", flags.objectives, names + " (default: all)");
  sub->add_option("--set", flags.settings,
                  "Options of a single objective, as beta=0.1,loss_type=ipo (default: several, in turn)");
  sub->add_option("--tuning", flags.tunings, "full, lora (default: both)");
  sub->add_option(
      "--batch", flags.batches,
      "single, three, short, masked, unscored, packed, frozen (of sft); left, right, none (padding, of every "
      "objective), documents (one packed row, of sft, distill, pairs and kto) (default: all)");
  sub->add_option("--seq-len", flags.lengths,
                  "Tokens of a batch's longest sequence (default: 5,37, and 13 for left, right, none)");
  sub->add_option("--chunk", flags.chunks,
                  "Chunks, of methods that have them (default: 1 and those around the batch's boundaries)");
  sub->add_option("--head-chunk", flags.head_chunks, "Chunks of the LM head (default: 1, 3 and all)");
  sub->add_option("--dtype", flags.dtype, "float64");
  sub->add_option("--device", flags.device, "cpu or cuda: where the models lie (default: cpu)");
  sub->add_option("--seed", flags.seed, "Of weights and tokens (default: 0)");
  sub->add_flag("--quick", flags.quick, "Shorter sequences, fewer chunks and combinations");
  sub->footer(
      fmt::format("A sequence of --seq-len has at most {} tokens.\n{}", kMaxSweepLength, describe_limits()));

  sub = command("goldens", "All methods on golden cases", goldens);
  sub->add_option("DIR", flags.folders, "Sets (models/, cases/) or single cases")->required();
  sub->add_option("--method", flags.methods, "Methods to check, and reference (default: all)");
  sub->add_option(
      "--chunk", flags.chunks,
      "Chunks, of methods that have them (default: 1, 7, 16 and those around the case's lengths)");
  sub->add_option("--device", flags.device, "cpu or cuda: where the models lie (default: cpu)");
  sub->add_option("--limit", flags.limit, "Permitted relative error (default: 1e-10)");

  sub = command("gradcheck", "The reference against finite differences",
                [](const Flags& given) { return run_gradcheck(given.seed, given.json); });
  sub->add_option("--seed", flags.seed, "Of inputs and cotangents (default: 0)");

  sub = command("compare", "A file of gradients, from any framework, against the float64 truth", compare);
  sub->add_option("--model", flags.model, "A folder or a preset")->required();
  sub->add_option(
         "--tokens", flags.tokens,
         "safetensors: input_ids, attention_mask, position_ids, and what the objective needs (labels, "
         "completion_mask, advantages, ...)")
      ->required();
  sub->add_option(
      "--first-labels", flags.first_labels,
      "Labels that padding on their left would predict: refuse, or ignore, which drops and counts "
      "them (default: refuse)");
  sub->add_option("--gradients", flags.gradients, "safetensors: gradients under Hugging Face names")
      ->required();
  sub->add_option("--objective", flags.objectives, "One of " + names + " (default: sft)");
  sub->add_option("--set", flags.settings, "Options of the objective, as beta=0.1,loss_type=ipo");
  sub->add_option("--adapter", flags.adapter,
                  "A PEFT folder: the gradients are its, and it is its base's reference");
  sub->add_option("--reference", flags.reference,
                  "A folder or a preset whose log-probabilities are the reference's");
  sub->add_option("--teacher", flags.teacher, "A folder or a preset to distil from");
  sub->add_option("--divisor", flags.divisor,
                  "What the summed loss of sft is divided by (default: the number of scored tokens)");
  sub->add_option(
      "--tolerance", flags.tolerance,
      "Permitted relative error, or auto: 1e-10 for float64, below that 3 x the noise of the dtype, "
      "measured on the same batch");
  sub->add_option(
      "--compute-dtype", flags.compute_dtype,
      "Dtype the gradients were computed in, where they were kept in a wider one (default: theirs)");
  sub->add_flag("--diagnose", flags.diagnose,
                "Make the mistakes that training code makes, one after another and two at a time, and name "
                "the one that "
                "gives these gradients; for short batches");
  sub->add_option("--diagnose-chunk", flags.diagnose_chunks,
                  "Sizes of chunks in which the mistake may lie, as 100,384 (beside powers of two and even "
                  "parts); implies "
                  "--diagnose");
  sub->add_option("--chunk", flags.chunks, "Chunk of the float64 run (default: auto)");
  sub->add_option("--seed", flags.seed, "Of a preset's random weights (default: 0)");
  sub->add_option("--dtype", flags.dtype,
                  "Dtype a preset's random weights are drawn in (default: the preset's own)");

  sub = command("precision", "Errors of float32 and bfloat16 against the float64 truth, method by method",
                precision);
  sub->add_option("--model", flags.model, "A folder or a preset (default: qwen3-tiny)");
  sub->add_option("--objective", flags.objectives,
                  "Any but distill, with its options by default (default: sft)");
  sub->add_option("--method", flags.methods, "Methods beside standard (default: all)");
  sub->add_option("--chunk", flags.chunks, "Chunks of methods and heads that have them (default: 8,32)");
  sub->add_option("--seq-len", flags.lengths, "Tokens of each of two sequences (default: 64)");
  sub->add_option("--repeats", flags.batches_of,
                  "Batches, over which errors are root mean squares (default: 24)");
  sub->add_option("--dtype", flags.dtype, "float32 or bfloat16 (default: both)");
  sub->add_option("--device", flags.device, "cpu or cuda (default: cpu)");
  sub->add_option("--seed", flags.seed, "Of weights and tokens (default: 0)");

  add_long_command(app, action);

  return run_command_line(app, argc, argv, [&action] { return action(); });
}
