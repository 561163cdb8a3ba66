// `streambp-verify compare`: files in, verdict out.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <cmath>
#include <fmt/ranges.h>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/objective/terms.h"
#include "streambp/runtime/bytes.h"
#include "streambp/runtime/output_file.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/compare/compare.h"
#include "verify/compare/gradient_files.h"
#include "verify/compare/hints.h"
#include "verify/compare/judge.h"
#include "verify/compare/junit.h"
#include "verify/compare/truth.h"
#include "verify/diagnose/compare_diagnose.h"

namespace streambp::verify {
namespace {

struct CompareFlags : CommonFlags {
  std::string model, dtype, tokens, gradients;
  std::string first_labels = "refuse";
  std::string documents = "sdpa";
  std::string objective = "sft";
  std::string settings, adapter, teacher, reference;
  std::optional<double> divisor, loss;
  std::string tolerance = "auto";
  std::string compute_dtype;
  std::string chunk = "auto";
  std::string diagnose_chunks, junit;
  bool diagnose = false;
  uint64_t seed = 0;
};

constexpr const char* kCompareExamples = R"(Examples:
  streambp-verify compare --model DIR --tokens batch.safetensors --gradients gradients.safetensors
  streambp-verify compare --model DIR --tokens batch.safetensors --gradients gradients.safetensors \
    --objective dpo --set beta=0.1 --compute-dtype bfloat16 --diagnose --loss 0.693

What is printed:
  error        of a parameter: |theirs - truth| / |truth|, norms over its whole gradient, truth in float64
  factor       the one number that all gradients are the truth times, with its interval: 2 where a loss was summed
               over 2 micro-batches and not averaged, for example
  best factor  the same of one parameter alone; cosine: of the angle between its gradient and the truth
  noise        the error of this project's own gradients in that dtype on the same batch; x noise: error / noise
  true loss    in float64, with the scored tokens and, for sft, the number that their sum is divided by

Verdicts: exact, every error is within its limit (1e-10 for float64, 3 x the noise for other dtypes, or --tolerance);
scaled, all gradients are off by the same factor; undecided, the precision leaves it open, or any code would give such
gradients (all are zero, the model's probabilities uniform); wrong; incomplete, names or shapes are not the model's. The exit code is 0 for exact alone, with a --loss that holds, and 1 for the others.
)";

double read_tolerance(const std::string& text) {
  double tolerance = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tolerance);
  if (error != std::errc() || end != text.data() + text.size() || !(tolerance > 0.0) ||
      !std::isfinite(tolerance)) {
    throw InputError("--tolerance '{}': expected a number above 0, or auto", text);
  }
  return tolerance;
}

CompareOptions read_options(const CompareFlags& flags) {
  CompareOptions options;
  options.model = flags.model;
  options.dtype = flags.dtype;
  options.tokens = flags.tokens;
  options.first_labels = parse_first_labels(flags.first_labels);
  options.documents = parse_documents(flags.documents);
  options.gradients = flags.gradients;
  options.objective = flags.objective;
  options.settings = parse_settings(flags.settings, "--set");
  options.pad_token = take_pad_token(options.settings);
  options.adapter = flags.adapter;
  options.teacher = flags.teacher;
  options.reference = flags.reference;
  options.divisor = flags.divisor;
  if (flags.tolerance != "auto") options.tolerance = read_tolerance(flags.tolerance);
  if (!flags.compute_dtype.empty()) options.compute_dtype = parse_dtype(flags.compute_dtype);
  options.chunk = parse_chunks(flags.chunk, "--chunk").front();
  options.seed = flags.seed;
  options.json = flags.json;
  options.diagnose = flags.diagnose || !flags.diagnose_chunks.empty();
  if (!flags.diagnose_chunks.empty())
    options.diagnose_chunks = parse_integers(flags.diagnose_chunks, "--diagnose-chunk", 1);
  return options;
}

/// Refuses what can't be judged before the model is opened, which may take minutes and all memory.
void require_possible(const CompareOptions& options, const Tensors& gradients) {
  const Config config = open_config(options.model);
  int64_t parameters = 0, of_name = 0, of_shape = 0;
  std::string other;
  for (const ParameterShape& parameter : parameter_shapes(config)) {
    parameters += c10::multiply_integers(parameter.shape);
    const auto given = gradients.find(parameter.name);
    if (given == gradients.end()) continue;
    ++of_name;
    of_shape += given->second.sizes() == at::IntArrayRef(parameter.shape) ? 1 : 0;
    if (given->second.sizes() != at::IntArrayRef(parameter.shape))
      other = fmt::format("{} is [{}], expected [{}]", shown(parameter.name),
                          fmt::join(given->second.sizes(), ", "), fmt::join(parameter.shape, ", "));
  }
  if (options.adapter.empty() && of_name > 0 && of_shape == 0)
    throw InputError("{}: gradients of another model than {}: {}", options.gradients, options.model, other);
  const int64_t needed = parameters * 8 * (options.adapter.empty() ? 2 : 1), free = available_memory();
  if (needed > free)
    throw InputError("--model {}: weights{} in float64 take {}, {} are free", options.model,
                     options.adapter.empty() ? " and gradients" : "", format_bytes(needed),
                     format_bytes(free));
}

/// What may be the matter, in the words of who has to mend it.
void add_hints(const Truth& truth, const CompareOptions& options, Comparison& comparison) {
  add_factor_hints(truth.batch, options, comparison);
  if (comparison.verdict == Verdict::kWrong && is_preset(options.model)) {
    comparison.hints.push_back(
        fmt::format("a preset's weights are drawn: --seed ({} here) and --dtype ({} here) have to be those "
                    "of the gradients' run",
                    options.seed, options.dtype.empty() ? truth.model.config().dtype : options.dtype));
  }
  if (!options.diagnose &&
      (comparison.verdict == Verdict::kWrong || comparison.verdict == Verdict::kScaled)) {
    comparison.hints.push_back("--diagnose looks for the mistake that gives such gradients");
  }
}

/// What the true loss is made of.
void describe_loss(const Truth& truth, const CompareOptions& options, CompareReport& report) {
  const Counts whole = count(truth.batch);
  report.tokens = truth.batch.size();
  report.scored = whole.scored;
  if (options.objective != "sft") return;
  const Options complete = complete_options(objective_kind("sft"), objective_options(options));
  report.divisor = token_divisor("sft", complete, whole);
}

int run_compare(const CompareFlags& flags) {
  const CompareOptions options = read_options(flags);
  if (!flags.junit.empty()) check_output_file("--junit", flags.junit);
  const Tensors gradients = read_gradients(options.gradients);
  require_possible(options, gradients);
  Truth truth = open_truth(options);
  if (count(truth.batch).scored == 0)
    print_line(stderr, "streambp-verify: {}: no token is scored", options.tokens);

  CompareReport report = judge(truth, options, gradients);
  describe_loss(truth, options, report);
  Comparison& comparison = report.comparison;
  for (const std::string& note : reading_notes(truth.batch))
    comparison.notes.push_back(fmt::format("{}: {}", options.tokens, note));
  add_value_hints(truth, options, gradients, comparison);
  add_hints(truth, options, comparison);
  add_name_hints(options, comparison);
  add_precision_hints(comparison);
  if (flags.loss)
    report.given_loss = judge_loss(*flags.loss, report.loss, truth.batch, options, comparison.dtype);
  if (options.json) {
    fmt::print("{}\n", json_line(options, report));
  } else {
    print_report(report);
  }
  std::string diagnosed;
  if (options.diagnose) {
    try {
      const Diagnosis diagnosis = diagnose_comparison(truth, options, comparison, gradients);
      diagnosed = diagnosis_text(diagnosis);
      fmt::print("{}\n", options.json ? diagnosis_json(diagnosis) : "\n" + diagnosed);
    } catch (const InputError& error) {
      if (comparison.verdict != Verdict::kIncomplete) throw;
      print_line(stderr, "streambp-verify: no diagnosis of gradients that are incomplete: {}", error.what());
    }
  }
  if (!flags.junit.empty()) write_file(flags.junit, junit_text(options, report, diagnosed));
  const bool loss_holds = !report.given_loss || report.given_loss->within();
  return comparison.verdict == Verdict::kExact && loss_holds ? kExitGood : kExitCheckFailed;
}

}  // namespace

void add_compare_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<CompareFlags>();
  CLI::App* const command =
      app.add_subcommand("compare", "A file of gradients, from any framework, against the float64 truth");
  command->footer(std::string(kCompareExamples) + "\n" + kExitCodes);
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    return command->add_option(flag, value, help);
  };
  text("--model", flags->model, "A folder or a preset")->required();
  text("--tokens", flags->tokens,
       "safetensors: input_ids, attention_mask, position_ids, and what the objective needs (labels, "
       "completion_mask, advantages, ...)")
      ->required();
  text("--first-labels", flags->first_labels,
       "Labels that padding on their left would predict: refuse, or ignore, which drops and counts them; "
       "ignore-all: those of padding as well (labels that are input_ids)")
      ->capture_default_str();
  text("--documents", flags->documents,
       "How position_ids tell documents of a row apart: sdpa, without an attention_mask, as transformers' "
       "sdpa, eager and flex attention; flash, in one row without padding, as its flash attention")
      ->capture_default_str();
  text("--gradients", flags->gradients,
       "safetensors: gradients under Hugging Face names; a file, a folder of shards, or their index.json")
      ->required();
  text("--objective", flags->objective, fmt::format("One of {}", fmt::join(objective_names(), ", ")))
      ->capture_default_str();
  text(
      "--set", flags->settings,
      "Options of the objective, as beta=0.1,loss_type=ipo; pad_token_id=none (or a number): the embedding's "
      "padding_idx, where the trainer's isn't what config.json says (it has set it after the model was "
      "made); once with commas, or several times")
      ->join(',');
  text("--adapter", flags->adapter, "A PEFT folder: the gradients are its, and it is its base's reference");
  text("--reference", flags->reference,
       "A folder or a preset whose log-probabilities are the reference's; with --adapter: base, the model "
       "without it, or adapter, a frozen copy of it (needed where it is trained already)");
  text("--teacher", flags->teacher, "A folder or a preset to distil from");
  command->add_option("--divisor", flags->divisor,
                      "What the summed loss of sft is divided by (default: the number of scored tokens)");
  command->add_option(
      "--loss", flags->loss,
      "The loss that belongs to the gradients, held against the true one: 1e-10 of it in float64, 1e-5 in "
      "float32, 2e-2 below that");
  text("--tolerance", flags->tolerance,
       "Permitted relative error, or auto: 1e-10 for float64, below that 3 x the noise of the dtype, "
       "measured on the same batch")
      ->capture_default_str();
  text("--compute-dtype", flags->compute_dtype,
       "Dtype the gradients were computed in, where they were kept in a wider one (default: theirs)");
  command->add_flag(
      "--diagnose", flags->diagnose,
      "Say what is wrong: which rows, tokens and terms of the loss are in these gradients how often, "
      "from which operation on they are wrong, or which mistake of the forward pass gives them");
  text("--diagnose-chunk", flags->diagnose_chunks,
       "Sizes of chunks in which the mistake may lie, as 100,384 (in addition to powers of two and even "
       "parts); implies --diagnose");
  text("--junit", flags->junit,
       "A file for the verdict, and each parameter, as JUnit's XML, which CI servers show");
  text("--chunk", flags->chunk, "Chunk of the float64 run")->capture_default_str();
  add_seed_flag(*command, "--seed", flags->seed, "Of a preset's random weights");
  text("--dtype", flags->dtype, "Dtype a preset's random weights are drawn in (default: the preset's own)");
  set_action(*command, flags, action, run_compare);
}

}  // namespace streambp::verify
