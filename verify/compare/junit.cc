#include "verify/compare/junit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string_view>

namespace streambp::verify {
namespace {

/// What XML 1.0 can hold of it: of other control characters there is no spelling.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t' ? c : '?';
    }
  }
  return result;
}

std::string test_case(const std::string& suite, const std::string& name, const std::string& failure,
                      const std::string& details) {
  const std::string head =
      fmt::format("<testcase classname=\"{}\" name=\"{}\"", escaped(suite), escaped(name));
  if (failure.empty()) return head + "/>\n";
  return fmt::format("{}><failure message=\"{}\">{}</failure></testcase>\n", head, escaped(failure),
                     escaped(details));
}

std::string problem_of(const ParameterFinding& finding) {
  if (!finding.of.problem.empty()) return finding.of.problem;
  if (finding.within()) return "";
  return finding.judged > finding.limit
             ? fmt::format("error {:.2g}, limit {:.2g}", finding.judged, finding.limit)
             : fmt::format("a bias of {:.2g} along the truth, within the noise", finding.factor - 1.0);
}

}  // namespace

std::string junit_text(const CompareOptions& options, const CompareReport& report,
                       const std::string& diagnosis) {
  const Comparison& comparison = report.comparison;
  const std::string suite = fmt::format("streambp-verify compare {}", options.gradients);
  std::string cases;
  size_t tests = 0, failures = 0;
  const auto add = [&](const std::string& name, const std::string& failure, const std::string& details) {
    cases += test_case(suite, name, failure, details);
    ++tests;
    failures += failure.empty() ? 0 : 1;
  };
  const std::string verdict = verdict_name(comparison.verdict);
  const bool exact = comparison.verdict == Verdict::kExact;
  add("verdict", exact ? "" : verdict,
      fmt::format("{}\n{}\n{}", diagnosis, fmt::join(comparison.notes, "\n"),
                  fmt::join(comparison.hints, "\n")));
  for (const ParameterFinding& finding : comparison.findings) {
    const std::string problem = problem_of(finding);
    add(finding.of.name, problem,
        fmt::format("factor {:.6g}, cosine {:.6g}", finding.factor, finding.cosine));
  }
  if (report.given_loss) {
    const LossFinding& loss = *report.given_loss;
    add("loss", loss.within() ? "" : fmt::format("error {:.2g}, limit {:.2g}", loss.error, loss.limit),
        fmt::format("{}", fmt::join(loss.hints, "\n")));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites><testsuite name=\"{}\" tests=\"{}\" "
      "failures=\"{}\">\n{}</testsuite></testsuites>\n",
      escaped(suite), tests, failures, cases);
}

}  // namespace streambp::verify
