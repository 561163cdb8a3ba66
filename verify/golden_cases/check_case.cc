#include "verify/golden_cases/check_case.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

#include "verify/reference_evaluation.h"

namespace streambp::verify {
namespace {

/// One configuration that computes a case's result. No settings: the reference.
struct Run {
  std::string text;  // "streambp chunk 7"
  std::optional<Settings> settings;
};

std::vector<int64_t> default_chunks(const Batch& batch) {
  const int64_t columns = batch.padded_columns;
  const int64_t tokens = batch.size();
  const std::set<int64_t> chunks{1, 7, 16, columns - 1, columns, columns + 5, tokens - 1, tokens};
  std::vector<int64_t> valid;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(valid),
               [](int64_t chunk) { return chunk > 0; });
  return valid;
}

/// Of a quick run, for the case of this number.
std::vector<int64_t> one_of(const std::vector<int64_t>& chunks, size_t turn) {
  return {chunks[turn % chunks.size()]};
}

std::vector<Run> runs_of(const GoldensOptions& options, const Batch& batch, size_t turn) {
  std::vector<std::string> methods = options.methods;
  if (methods.empty()) {
    methods = method_names();
    methods.emplace_back(kReferenceName);
  }
  std::vector<int64_t> chunks = options.chunks.empty() ? default_chunks(batch) : options.chunks;
  if (options.quick) chunks = one_of(chunks, turn);
  std::vector<Run> runs;
  for (const std::string& name : methods) {
    if (name == kReferenceName) {
      runs.push_back({name, std::nullopt});
      continue;
    }
    Settings settings;
    settings.method = parse_method(name);
    if (!is_chunked(settings.method) && !settings.streams_head()) {
      runs.push_back({name, settings});
      continue;
    }
    for (const int64_t chunk : chunks) {
      if (is_chunked(settings.method)) settings.chunk = chunk;
      settings.head_chunk = chunk;  // so that the head, too, is cut at awkward tokens
      std::vector<Settings> variants = same_gradients_variants(settings);
      variants.push_back(settings);
      if (options.quick) variants = {variants[turn++ % variants.size()]};
      for (const Settings& variant : variants) runs.push_back({configuration_text(variant), variant});
    }
  }
  return runs;
}

/// Counts what is beyond the limit among `errors`, found in `run`.
void judge(GoldenResult& result, const std::string& run, const std::vector<ParameterError>& errors,
           double limit) {
  result.checks += static_cast<int64_t>(errors.size());
  for (const ParameterError& of : errors) {
    if (!(of.error <= limit)) result.failures.push_back({run, of});
  }
}

void add(GoldenResult& result, const std::string& run, const EvaluationErrors& errors, double limit) {
  result.loss_error = worse(result.loss_error, errors.loss);
  result.log_probability_error = worse(result.log_probability_error, errors.log_probabilities);
  result.value_error = worse(result.value_error, errors.values);
  judge(result, run, errors.all(), limit);
  if (errors.gradients.empty()) return;
  const ParameterError& worst = errors.gradients.front();
  if (result.worst.name.empty() || is_worse(worst.error, result.worst.error)) result.worst = worst;
}

void check_legacy_config(const GoldenCase& golden, const Config& config, GoldenResult& result) {
  if (!std::filesystem::exists(golden.model / "config.legacy.json")) return;
  ++result.checks;
  if (!(read_config(golden.model / "config.legacy.json") == config)) {
    result.failures.push_back({"config.legacy.json", {"(settings differ from config.json)", 0.0, {}}});
  }
}

}  // namespace

GoldenResult check_golden_case(const GoldenCase& golden, const GoldensOptions& options, size_t turn) {
  GoldenResult result;
  result.name = golden.name;
  result.objective = golden.objective;
  result.model = golden.model.filename().string();
  LoadedCase loaded;
  try {
    loaded = load_golden_case(golden);
  } catch (const Unsupported& reason) {
    result.unsupported = reason.what();
    return result;
  }
  check_legacy_config(golden, loaded.models.front()->model.config(), result);
  result.tokens = loaded.tasks.front().batch.size();
  judge(result, "loading", loaded.checks, options.limit);
  for (const GoldenTask& task : loaded.tasks) {
    GoldenModel& subject = *task.subject;
    for (const Run& run : runs_of(options, task.batch, turn)) {
      const Evaluation value =
          run.settings ? evaluate(subject.model, task.batch, *task.objective, *run.settings,
                                  task.teacher == nullptr ? nullptr : &task.teacher->model)
                       : evaluate_reference(subject.model, task.batch, task.reference, subject.adapters());
      EvaluationErrors errors = measure(value, task.truth);
      for (ParameterError& of : errors.gradients) of.name.insert(0, task.prefix);
      add(result, run.text + ", " + task.name, errors, options.limit);
    }
  }
  return result;
}

}  // namespace streambp::verify
