#include "verify/golden_cases/report.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"

namespace streambp::verify {
namespace {

constexpr size_t kShownCases = 8;

}  // namespace

StreamingTable golden_table(const std::vector<GoldenCase>& cases) {
  size_t name_width = 0, model_width = 0;
  for (const GoldenCase& golden : cases) {
    name_width = std::max(name_width, printable(golden.name, kPrintedCell).size());
    model_width = std::max(model_width, printable(golden.model.filename().string(), kPrintedCell).size());
  }
  using enum StreamingTable::Align;
  return StreamingTable({{"case", name_width, kLeft},
                         {"model", model_width, kLeft},
                         {"tokens", 0, kRight},
                         {"checks", 0, kRight},
                         {"loss error", 0, kRight},
                         {"log-prob error", 0, kRight},
                         {"value error", 0, kRight},
                         {"gradient error", 0, kRight},
                         {"verdict", 0, kLeft},
                         {"worst parameter", 0, kLeft}});
}

std::vector<std::string> golden_row(const GoldenResult& result) {
  if (!result.unsupported.empty())
    return {result.name, result.model, "-", "-", "-", "-", "-", "-", "unsupported: " + result.unsupported,
            ""};
  return {result.name,
          result.model,
          fmt::to_string(result.tokens),
          fmt::to_string(result.checks),
          error_text(result.loss_error),
          error_text(result.log_probability_error),
          error_text(result.value_error),
          error_text(result.worst.error),
          result.verdict(),
          result.worst.name};
}

std::string golden_json(const GoldenResult& result, double limit) {
  nlohmann::json line{{"kind", "golden"},
                      {"case", result.name},
                      {"objective", result.objective},
                      {"model", result.model},
                      {"verdict", result.verdict()}};
  if (result.unsupported.empty()) {
    line.update({{"tokens", result.tokens},
                 {"checks", result.checks},
                 {"limit", limit},
                 {"worst_parameter", result.worst.name},
                 {"worst_error", result.worst.error},
                 {"loss_error", result.loss_error},
                 {"logprob_error", result.log_probability_error},
                 {"value_error", result.value_error}});
  } else {
    line["reason"] = result.unsupported;
  }
  return json_text(line);
}

void print_golden_failures(const GoldenResult& result, double limit) {
  std::map<std::string, GoldenFailure> worst;
  for (const GoldenFailure& failure : result.failures) {
    const auto [at, is_new] = worst.try_emplace(failure.of.name, failure);
    if (!is_new && is_worse(failure.of.error, at->second.of.error)) at->second = failure;
  }
  std::vector<GoldenFailure> failures;
  for (const auto& [name, failure] : worst) failures.push_back(failure);
  std::stable_sort(failures.begin(), failures.end(), [](const GoldenFailure& a, const GoldenFailure& b) {
    return is_worse(a.of.error, b.of.error);
  });
  std::stable_partition(failures.begin(), failures.end(),
                        [](const GoldenFailure& failure) { return failure.of.name.starts_with('('); });
  fmt::print("\n");
  print_line(stdout, "{}: {} of {} checks failed (limit {})", result.name, result.failures.size(),
             result.checks, error_text(limit));
  for (size_t i = 0; i < std::min(failures.size(), kShownCases); ++i) {
    const GoldenFailure& failure = failures[i];
    print_line(stdout, "  {}  {}{}  in {}", failure.of.name, error_text(failure.of.error),
               failure.of.problem.empty() ? "" : " (" + failure.of.problem + ")", failure.run);
  }
  if (failures.size() > kShownCases) fmt::print("  and {} more\n", failures.size() - kShownCases);
}

}  // namespace streambp::verify
