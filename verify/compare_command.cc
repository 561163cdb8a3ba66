// The command around judge: files in, verdict out.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "streambp/cli/command_line.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "verify/compare/compare.h"
#include "verify/diagnose/compare_diagnose.h"
#include "verify/compare/judge.h"
#include "verify/compare/truth.h"

namespace streambp::verify {
namespace {

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
          {"rows x (columns - 1)", rows * (columns - 1.0)},
          {"scored tokens and the first of each row", scored + rows}};
}

}  // namespace

int run_compare(const CompareOptions& options) {
  Truth truth = open_truth(options);
  const Tensors gradients = read_gradients(options.gradients);
  const auto scored = static_cast<double>(count(truth.batch).scored);
  if (scored == 0.0)
    fmt::print(stderr, "streambp-verify: {}: no token is scored, every gradient is 0\n", options.tokens);

  CompareReport report = judge(truth, options, gradients);
  Comparison& comparison = report.comparison;
  if (comparison.differs && options.objective == "sft") {
    const FactorFit& fit = comparison.fit;
    const double close = std::max((fit.high - fit.low) / std::abs(fit.factor), 1e-9);
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
  if (!options.diagnose &&
      (comparison.verdict == Verdict::kWrong || comparison.verdict == Verdict::kScaled)) {
    comparison.hints.push_back("--diagnose looks for the mistake that gives such gradients");
  }
  if (options.json) {
    fmt::print("{}\n", json_line(options, report));
  } else {
    print_report(report);
  }
  if (options.diagnose) {
    const Diagnosis diagnosis = diagnose_comparison(truth, options, comparison, gradients);
    fmt::print("{}\n", options.json ? diagnosis_json(diagnosis) : "\n" + diagnosis_text(diagnosis));
  }
  return comparison.verdict == Verdict::kExact ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp::verify
