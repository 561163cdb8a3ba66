#include "verify/compare/report.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::verify {
namespace {

constexpr size_t kShownParameters = 10;

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

/// Whether limits are relative to floors that differ from parameter to parameter.
bool has_floors(const CompareReport& report) {
  return report.noise_runs > 0;
}

/// Parameters whose gradient in float64 is rounding alone, so that they are held against that.
size_t lost_in_rounding(const CompareReport& report) {
  if (has_floors(report)) return 0;
  const auto& findings = report.comparison.findings;
  return static_cast<size_t>(std::count_if(findings.begin(), findings.end(), [&](const auto& finding) {
    return finding.limit > 1.0 && finding.limit > report.comparison.tolerance;
  }));
}

/// The findings that furthest exceed, or come closest to, what they are held against.
std::vector<ParameterFinding> worst_findings(const CompareReport& report) {
  std::vector<ParameterFinding> findings;
  for (const ParameterFinding& finding : report.comparison.findings) {
    if (finding.of.problem != "missing" && finding.of.problem != "surplus") findings.push_back(finding);
  }
  if (has_floors(report) || lost_in_rounding(report) > 0) {
    std::stable_sort(findings.begin(), findings.end(),
                     [](const ParameterFinding& a, const ParameterFinding& b) {
                       return is_worse(a.judged / a.limit, b.judged / b.limit);
                     });
  }
  if (findings.size() > kShownParameters) findings.resize(kShownParameters);
  return findings;
}

/// The parameters that are furthest off, with what the verdict makes worth knowing of them.
void print_worst(const CompareReport& report) {
  const Verdict verdict = report.comparison.verdict;
  const bool scaled = verdict == Verdict::kScaled;
  const bool exact = verdict == Verdict::kExact;
  std::vector<std::string> header{"worst parameters", "error"};
  if (has_floors(report)) header.insert(header.end(), {"noise", "x noise"});
  if (scaled) header.insert(header.end(), {"best factor", "error without the factor"});
  if (!scaled && !exact) header.insert(header.end(), {"best factor", "cosine", "note"});
  Table table(header);
  const std::vector<ParameterFinding> worst = worst_findings(report);
  for (const ParameterFinding& finding : worst) {
    std::vector<std::string> row{finding.of.name, error_text(finding.of.error)};
    if (has_floors(report))
      row.insert(row.end(), {error_text(finding.noise), fmt::format("{:.2f}", finding.ratio())});
    if (scaled) row.insert(row.end(), {number_text(finding.factor), error_text(finding.residual)});
    if (!scaled && !exact) {
      row.insert(row.end(), {number_text(finding.factor), number_text(finding.cosine), finding.of.problem});
    }
    table.add(row);
  }
  if (!worst.empty()) fmt::print("\n{}", table.text());
}

/// "within 1e-10 of the float64 truth" in the words of the rule.
std::string limit_text(const CompareReport& report) {
  if (!has_floors(report)) return error_text(report.comparison.tolerance);
  return fmt::format("3 x the noise of {} (of a few numbers up to 9 x), measured in {} run{},",
                     dtype_name(report.comparison.dtype), report.noise_runs,
                     report.noise_runs == 1 ? "" : "s");
}

void print_verdict(const CompareReport& report) {
  const Comparison& comparison = report.comparison;
  const ParameterFinding& worst = comparison.findings.front();
  const size_t size = comparison.findings.size();
  const std::string limit = limit_text(report);
  const auto beyond = std::count_if(comparison.findings.begin(), comparison.findings.end(),
                                    [](const ParameterFinding& finding) { return !finding.within(); });
  switch (comparison.verdict) {
    case Verdict::kExact:
      if (const size_t lost = lost_in_rounding(report); lost > 0) {
        const ParameterFinding of_others = worst_findings(report).front();
        print_line(stdout,
                   "exact: all {} gradients within {} of the float64 truth, but for {} that are rounding "
                   "alone, within that; worst {} at {}",
                   size, limit, lost, error_text(of_others.of.error), of_others.of.name);
        break;
      }
      print_line(stdout, "exact: all {} gradients within {} of the float64 truth; worst {} at {}", size,
                 limit, error_text(worst.of.error), worst.of.name);
      break;
    case Verdict::kScaled:
      fmt::print("scaled: all {} gradients are the truth times {:.12g} (1/{:.12g}), within {}\n", size,
                 comparison.factor, 1.0 / comparison.factor, limit);
      break;
    case Verdict::kUndecided:
      if (beyond == 0) {
        fmt::print("undecided: the gradients agree; see the notes for why that is no evidence\n");
        break;
      }
      fmt::print(
          "undecided: {} of {} gradients are more than {} from the float64 truth; see the notes and "
          "hints for what keeps that from being a verdict\n",
          beyond, size, limit);
      break;
    case Verdict::kWrong:
      if (beyond == 0) {
        fmt::print("wrong: the median error of {} gradients is {:.2f} x the noise of {}, beyond {:.2f} x\n",
                   size, comparison.middle_ratio, dtype_name(comparison.dtype), comparison.middle_limit);
      } else {
        fmt::print("wrong: {} of {} gradients are more than {} from the float64 truth\n", beyond, size,
                   limit);
      }
      break;
    case Verdict::kIncomplete:
      fmt::print("incomplete: these are not the gradients of this model's parameters\n");
      break;
  }
}

}  // namespace

void print_report(const CompareReport& report) {
  const Comparison& comparison = report.comparison;
  print_verdict(report);
  fmt::print("true loss: {:.12g}, of {} scored tokens out of {}{}\n", report.loss, report.scored,
             report.tokens,
             report.divisor ? fmt::format(", their sum divided by {:.12g}", *report.divisor) : "");
  if (report.given_loss) {
    const LossFinding& given = *report.given_loss;
    fmt::print("--loss {:.12g}: {} of it, {} {}\n", given.given, error_text(given.error),
               given.within() ? "within" : "beyond", error_text(given.limit));
    for (const std::string& hint : given.hints) print_line(stdout, "hint: {}", hint);
  }
  const FactorFit& fit = comparison.fit;
  if (fit.found()) {
    // Factors that lie a hundredth apart are those of the parameters, and of no divisor.
    const bool scattered =
        comparison.verdict == Verdict::kWrong && fit.high - fit.low > 0.01 * std::abs(fit.factor);
    if (scattered) {
      fmt::print("factor: none in common, {:.3g} ({:.3g} to {:.3g}) is the median of {} parameters\n",
                 fit.factor, fit.low, fit.high, fit.parameters);
    } else {
      fmt::print("factor: {:.12g} ({:.12g} to {:.12g}), the median of {} parameters, {} from 1\n", fit.factor,
                 fit.low, fit.high, fit.parameters, comparison.differs ? "different" : "indistinguishable");
    }
  }
  if (has_floors(report)) {
    const Power power = power_of(comparison);
    if (!power.worst_parameter.empty())
      print_line(
          stdout,
          "power: an error of {:.2g} % in a typical gradient, and of {:.2g} % in {}, would not be seen here",
          100.0 * power.middle, 100.0 * power.worst, power.worst_parameter);
  }
  if (!comparison.missing.empty()) print_line(stdout, "missing: {}", names_text(comparison.missing));
  if (!comparison.surplus.empty()) print_line(stdout, "surplus: {}", names_text(comparison.surplus));
  for (const std::string& note : comparison.notes) print_line(stdout, "note: {}", note);
  for (const std::string& hint : comparison.hints) print_line(stdout, "hint: {}", hint);
  print_worst(report);
}

std::string json_line(const CompareOptions& options, const CompareReport& report) {
  const Comparison& comparison = report.comparison;
  nlohmann::json parameters = nlohmann::json::array();
  for (const ParameterFinding& finding : worst_findings(report)) {
    parameters.push_back({{"name", finding.of.name},
                          {"error", finding.of.error},
                          {"factor", finding.factor},
                          {"cosine", finding.cosine},
                          {"residual", finding.residual},
                          {"noise", finding.noise},
                          {"ratio", finding.ratio()},
                          {"limit", finding.limit},
                          {"problem", finding.of.problem}});
  }
  const ParameterError& worst = comparison.findings.front().of;
  nlohmann::json line{{"kind", "comparison"},
                      {"model", options.model},
                      {"tokens_file", options.tokens},
                      {"gradients", options.gradients},
                      {"objective", options.objective},
                      {"verdict", verdict_name(comparison.verdict)},
                      {"compute_dtype", dtype_name(comparison.dtype)},
                      {"tolerance", comparison.tolerance},
                      {"worst_parameter", worst.name},
                      {"worst_error", worst.error},
                      {"factor", comparison.factor},
                      {"factor_low", comparison.fit.low},
                      {"factor_high", comparison.fit.high},
                      {"factor_differs", comparison.differs},
                      {"noise_runs", report.noise_runs},
                      {"median_ratio", comparison.middle_ratio},
                      {"median_limit", comparison.middle_limit},
                      {"unseen_error", nullptr},
                      {"notes", comparison.notes},
                      {"hints", comparison.hints},
                      {"missing", comparison.missing},
                      {"surplus", comparison.surplus},
                      {"loss", report.loss},
                      {"given_loss", nullptr},
                      {"tokens", report.tokens},
                      {"scored_tokens", report.scored},
                      {"divisor", report.divisor ? nlohmann::json(*report.divisor) : nlohmann::json(nullptr)},
                      {"parameters", parameters}};
  if (report.given_loss) {
    const LossFinding& given = *report.given_loss;
    line["given_loss"] = {
        {"loss", given.given}, {"error", given.error}, {"limit", given.limit}, {"hints", given.hints}};
  }
  if (has_floors(report)) {
    const Power power = power_of(comparison);
    line["unseen_error"] = {
        {"median", power.middle}, {"worst", power.worst}, {"worst_parameter", power.worst_parameter}};
  }
  if (report.ties) {
    line["near_ties"] = {
        {"tokens", report.ties->tokens}, {"near", report.ties->near}, {"layers", report.ties->layers}};
  }
  return json_text(line);
}

}  // namespace streambp::verify
