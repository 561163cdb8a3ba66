// The command around compare_gradients: files in, verdict out.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "streambp/driver/command_line.h"
#include "streambp/driver/inputs.h"
#include "streambp/driver/table.h"
#include "streambp/error.h"
#include "streambp/model/strict_json.h"
#include "streambp/model/tensor_file.h"
#include "verify/compare.h"
#include "verify/compare_truth.h"
#include "verify/evaluation.h"

namespace streambp {
namespace {

constexpr size_t kShownParameters = 10;

Tensors read_gradients(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto& entries = file.entries();
  const std::string prefix = "grad.";
  const bool golden = entries.contains("in.input_ids");
  Tensors gradients;
  for (const auto& [name, entry] : entries) {
    if (!golden) {
      gradients.emplace(name, read_tensor(file, name));
    } else if (name.starts_with(prefix)) {
      gradients.emplace(name.substr(prefix.size()), read_tensor(file, name));
    }
  }
  if (gradients.empty()) throw InputError("{}: no gradients in it", path);
  return gradients;
}

std::vector<Normaliser> normalisers_of(const Batch& batch, double scored) {
  const auto rows = static_cast<double>(batch.padded_rows);
  const auto columns = static_cast<double>(batch.padded_columns);
  return {{"nothing (a sum)", 1.0},
          {"scored tokens", scored},
          {"tokens", static_cast<double>(batch.size())},
          {"rows", rows},
          {"columns", columns},
          {"rows x columns", rows * columns},
          {"rows x (columns - 1)", rows * (columns - 1.0)}};
}

std::string number_text(double number) {
  return std::isnan(number) ? "-" : fmt::format("{:.6g}", number);
}

std::string names_text(const std::vector<std::string>& names) {
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(names.size(), kShownParameters); ++i) some.push_back(shown(names[i]));
  if (names.size() > kShownParameters)
    some.push_back(fmt::format("and {} more", names.size() - kShownParameters));
  return fmt::format("{}", fmt::join(some, ", "));
}

/// The parameters that are furthest off, with what the verdict makes worth knowing of them.
void print_worst(const Comparison& comparison) {
  const bool scaled = comparison.verdict == Verdict::kScaled;
  const bool exact = comparison.verdict == Verdict::kExact;
  std::vector<std::string> header{"worst parameters", "error"};
  if (scaled) header.insert(header.end(), {"best factor", "error without the factor"});
  if (!scaled && !exact) header.insert(header.end(), {"best factor", "cosine", "note"});
  Table table(header);
  size_t rows = 0;
  for (const ParameterFinding& finding : comparison.findings) {
    if (finding.of.problem == "missing" || finding.of.problem == "surplus") continue;
    if (++rows > kShownParameters) break;
    std::vector<std::string> row{finding.of.name, error_text(finding.of.error)};
    if (scaled) row.insert(row.end(), {number_text(finding.factor), error_text(finding.residual)});
    if (!scaled && !exact) {
      row.insert(row.end(), {number_text(finding.factor), number_text(finding.cosine), finding.of.problem});
    }
    table.add(row);
  }
  if (rows > 0) fmt::print("\n{}", table.text());
}

void print_report(const Comparison& comparison) {
  const ParameterFinding& worst = comparison.findings.front();
  const std::string tolerance = error_text(comparison.tolerance);
  switch (comparison.verdict) {
    case Verdict::kExact:
      fmt::print("exact: all {} gradients within {} of the float64 truth; worst {} at {}\n",
                 comparison.findings.size(), tolerance, error_text(worst.of.error), worst.of.name);
      break;
    case Verdict::kScaled:
      fmt::print("scaled: all {} gradients are the truth times {:.12g} (1/{:.12g}), within {}\n",
                 comparison.findings.size(), comparison.factor, 1.0 / comparison.factor, tolerance);
      break;
    case Verdict::kWrong:
      fmt::print("wrong: {} of {} gradients are more than {} from the float64 truth\n",
                 std::count_if(comparison.findings.begin(), comparison.findings.end(),
                               [&](const ParameterFinding& finding) {
                                 return !(finding.of.error <= comparison.tolerance);
                               }),
                 comparison.findings.size(), tolerance);
      break;
    case Verdict::kIncomplete:
      fmt::print("incomplete: these are not the gradients of this model's parameters\n");
      break;
  }
  if (!comparison.missing.empty()) fmt::print("missing: {}\n", names_text(comparison.missing));
  if (!comparison.surplus.empty()) fmt::print("surplus: {}\n", names_text(comparison.surplus));
  for (const std::string& hint : comparison.hints) fmt::print("hint: {}\n", hint);

  print_worst(comparison);
}

std::string json_line(const CompareOptions& options, const Comparison& comparison, double loss) {
  nlohmann::json parameters = nlohmann::json::array();
  for (size_t i = 0; i < std::min(comparison.findings.size(), kShownParameters); ++i) {
    const ParameterFinding& finding = comparison.findings[i];
    parameters.push_back({{"name", finding.of.name},
                          {"error", finding.of.error},
                          {"factor", finding.factor},
                          {"cosine", finding.cosine},
                          {"residual", finding.residual},
                          {"problem", finding.of.problem}});
  }
  const ParameterError& worst = comparison.findings.front().of;
  const nlohmann::json line{{"kind", "comparison"},
                            {"model", options.model},
                            {"tokens", options.tokens},
                            {"gradients", options.gradients},
                            {"objective", options.objective},
                            {"verdict", verdict_name(comparison.verdict)},
                            {"tolerance", comparison.tolerance},
                            {"worst_parameter", worst.name},
                            {"worst_error", worst.error},
                            {"factor", comparison.factor},
                            {"hints", comparison.hints},
                            {"missing", comparison.missing},
                            {"surplus", comparison.surplus},
                            {"loss", loss},
                            {"parameters", parameters}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int run_compare(const CompareOptions& options) {
  Truth truth = open_truth(options);
  const Tensors gradients = read_gradients(options.gradients);
  const auto scored = static_cast<double>(count(truth.batch).scored);
  if (scored == 0.0)
    fmt::print(stderr, "streambp-verify: {}: no token is scored, every gradient is 0\n", options.tokens);

  Settings settings;
  settings.chunk = options.chunk;
  const Evaluation result = evaluate(truth.model, truth.batch, *truth.objective, settings,
                                     truth.teacher ? &*truth.teacher : nullptr);
  Comparison comparison = compare_gradients(gradients, result.gradients, options.tolerance);
  if (comparison.verdict == Verdict::kScaled && options.objective == "sft") {
    // Half precision is too coarse to tell one count from the next: better no guess than a wrong one.
    const double close = std::min(comparison.tolerance, 1e-3);
    for (const std::string& guess :
         explain_factor(comparison.factor, options.divisor.value_or(std::max(scored, 1.0)),
                        normalisers_of(truth.batch, scored), close)) {
      comparison.hints.push_back("the factor fits " + guess);
    }
  }
  if (comparison.verdict == Verdict::kWrong && is_preset(options.model)) {
    comparison.hints.push_back(
        fmt::format("a preset's weights are drawn: --seed ({} here) and --dtype ({} here) have to be those "
                    "of the gradients' run",
                    options.seed, options.dtype.empty() ? truth.model.config().dtype : options.dtype));
  }
  if (options.json) {
    fmt::print("{}\n", json_line(options, comparison, result.loss));
  } else {
    print_report(comparison);
  }
  return comparison.verdict == Verdict::kExact ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp
