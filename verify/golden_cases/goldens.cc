#include "verify/golden_cases/goldens.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "streambp/cli/command_line.h"
#include "streambp/cli/table.h"
#include "streambp/error.h"
#include "verify/golden_cases/golden_case.h"

namespace streambp::verify {
namespace {

constexpr const char* kReference = "reference";
constexpr size_t kShownFailures = 8;

/// One way to compute a case's result. No settings: the reference.
struct Run {
  std::string text;  // "streambp chunk 7"
  std::optional<Settings> settings;
};

/// A parameter (or the loss, the log-probabilities, the values) that was too far off.
struct Failure {
  std::string run;
  ParameterError of;
};

struct CaseResult {
  std::string name;
  std::string objective;
  std::string model;
  int64_t tokens = 0;
  int64_t checks = 0;
  double loss_error = 0.0;
  double log_probability_error = 0.0;
  double value_error = 0.0;
  ParameterError worst;  // gradient
  std::vector<Failure> failures;
  std::string unsupported;  // the reason

  std::string verdict() const {
    return !unsupported.empty() ? "unsupported" : failures.empty() ? "pass" : "FAIL";
  }
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

std::vector<Run> runs_of(const GoldensOptions& options, const Batch& batch) {
  std::vector<std::string> methods = options.methods;
  if (methods.empty()) {
    methods = method_names();
    methods.emplace_back(kReference);
  }
  std::vector<Run> runs;
  for (const std::string& name : methods) {
    if (name == kReference) {
      runs.push_back({name, std::nullopt});
      continue;
    }
    Settings settings;
    settings.method = parse_method(name);
    if (!is_chunked(settings.method) && !settings.streams_head()) {
      runs.push_back({name, settings});
      continue;
    }
    for (const int64_t chunk : options.chunks.empty() ? default_chunks(batch) : options.chunks) {
      if (is_chunked(settings.method)) settings.chunk = chunk;
      settings.head_chunk = chunk;  // so that the head, too, is cut in awkward places
      runs.push_back({configuration_text(settings), settings});
      for (const Settings& variant : same_gradients_variants(settings))
        runs.push_back({configuration_text(variant), variant});
    }
  }
  return runs;
}

/// Counts what is beyond the limit among `errors`, found in `run`.
void judge(CaseResult& result, const std::string& run, const std::vector<ParameterError>& errors,
           double limit) {
  result.checks += static_cast<int64_t>(errors.size());
  for (const ParameterError& of : errors) {
    if (!(of.error <= limit)) result.failures.push_back({run, of});
  }
}

void add(CaseResult& result, const std::string& run, const EvaluationErrors& errors, double limit) {
  result.loss_error = worse(result.loss_error, errors.loss);
  result.log_probability_error = worse(result.log_probability_error, errors.log_probabilities);
  result.value_error = worse(result.value_error, errors.values);
  judge(result, run, errors.all(), limit);
  if (errors.gradients.empty()) return;
  const ParameterError& worst = errors.gradients.front();
  if (result.worst.name.empty() || is_worse(worst.error, result.worst.error)) result.worst = worst;
}

void check_legacy_config(const GoldenCase& golden, const Config& config, CaseResult& result) {
  if (!std::filesystem::exists(golden.model / "config.legacy.json")) return;
  ++result.checks;
  if (!(read_config(golden.model / "config.legacy.json") == config)) {
    result.failures.push_back({"config.legacy.json", {"(settings differ from config.json)", 0.0, {}}});
  }
}

CaseResult check_case(const GoldenCase& golden, const GoldensOptions& options) {
  CaseResult result;
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
    for (const Run& run : runs_of(options, task.batch)) {
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

std::string json_line(const CaseResult& result) {
  nlohmann::json line{{"kind", "golden"},
                      {"case", result.name},
                      {"objective", result.objective},
                      {"model", result.model},
                      {"verdict", result.verdict()}};
  if (result.unsupported.empty()) {
    line.update({{"tokens", result.tokens},
                 {"checks", result.checks},
                 {"worst_parameter", result.worst.name},
                 {"worst_error", result.worst.error},
                 {"loss_error", result.loss_error},
                 {"logprob_error", result.log_probability_error},
                 {"value_error", result.value_error}});
  } else {
    line["reason"] = result.unsupported;
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// What was too far off and in which run; the worst of each name, the worst first, and before all gradients
/// what is no gradient (its name is in parentheses): it explains them.
void print_failures(const CaseResult& result, double limit) {
  std::map<std::string, Failure> worst;
  for (const Failure& failure : result.failures) {
    const auto [at, is_new] = worst.try_emplace(failure.of.name, failure);
    if (!is_new && is_worse(failure.of.error, at->second.of.error)) at->second = failure;
  }
  std::vector<Failure> failures;
  for (const auto& [name, failure] : worst) failures.push_back(failure);
  std::stable_sort(failures.begin(), failures.end(),
                   [](const Failure& a, const Failure& b) { return is_worse(a.of.error, b.of.error); });
  std::stable_partition(failures.begin(), failures.end(),
                        [](const Failure& failure) { return failure.of.name.starts_with('('); });
  fmt::print("\n{}: {} of {} checks failed (limit {})\n", result.name, result.failures.size(), result.checks,
             error_text(limit));
  for (size_t i = 0; i < std::min(failures.size(), kShownFailures); ++i) {
    const Failure& failure = failures[i];
    fmt::print("  {}  {}{}  in {}\n", failure.of.name, error_text(failure.of.error),
               failure.of.problem.empty() ? "" : " (" + failure.of.problem + ")", failure.run);
  }
  if (failures.size() > kShownFailures) fmt::print("  and {} more\n", failures.size() - kShownFailures);
}

void print_table(const std::vector<CaseResult>& results, double limit) {
  Table table({"case", "model", "tokens", "checks", "loss error", "log-prob error", "value error",
               "gradient error", "worst parameter", "verdict"});
  for (const CaseResult& result : results) {
    if (!result.unsupported.empty()) {
      table.add({result.name, result.model, "-", "-", "-", "-", "-", "-", "-",
                 "unsupported: " + result.unsupported});
    } else {
      table.add({result.name, result.model, fmt::to_string(result.tokens), fmt::to_string(result.checks),
                 error_text(result.loss_error), error_text(result.log_probability_error),
                 error_text(result.value_error), error_text(result.worst.error), result.worst.name,
                 result.verdict()});
    }
  }
  fmt::print("{}", table.text());
  for (const CaseResult& result : results) {
    if (!result.failures.empty()) print_failures(result, limit);
  }
}

}  // namespace

int run_goldens(const GoldensOptions& options) {
  for (const std::string& name : options.methods) {
    if (name == kReference) continue;
    try {
      parse_method(name);
    } catch (const InputError& error) {
      throw InputError("{}, {}", error.what(), kReference);
    }
  }
  std::vector<CaseResult> results;
  for (const std::string& folder : options.folders) {
    for (const GoldenCase& golden : find_golden_cases(folder)) {
      results.push_back(check_case(golden, options));
      if (options.json) {
        fmt::print("{}\n", json_line(results.back()));
        std::fflush(stdout);
      }
    }
  }
  const auto count = [&](const std::string& verdict) {
    return std::count_if(results.begin(), results.end(),
                         [&](const CaseResult& r) { return r.verdict() == verdict; });
  };
  const auto passed = count("pass"), failed = count("FAIL"), unsupported = count("unsupported");
  if (!options.json && !results.empty()) {
    print_table(results, options.limit);
    fmt::print("\n{} passed, {} failed, {} unsupported; limit {}\n", passed, failed, unsupported,
               error_text(options.limit));
  }
  if (passed + failed == 0) {
    throw InputError("goldens: none of the {} cases could be run ({} unsupported)", results.size(),
                     unsupported);
  }
  return failed == 0 ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp::verify
