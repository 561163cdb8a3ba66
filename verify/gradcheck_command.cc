// `streambp-verify gradcheck`: the reference's own check, six-point differences on every operation and on
// small models.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reference/check/check.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/print.h"
#include "streambp/cli/table.h"
#include "verify/command_flags.h"
#include "verify/commands.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

struct Flags : CommonFlags {
  uint64_t seed = 0;
};

constexpr const char* kExamples = R"(Examples:
  streambp-verify gradcheck
  streambp-verify gradcheck --seed 7 --json
)";

void print_json(const reference::CheckResult& result) {
  const nlohmann::json line{{"kind", "gradcheck"},
                            {"name", result.name},
                            {"value_error", result.value_error},
                            {"value_limit", reference::kValueLimit},
                            {"gradient_error", result.gradient_error},
                            {"limit", result.limit},
                            {"verdict", result.passed ? "pass" : "FAIL"},
                            {"detail", result.detail}};
  fmt::print("{}\n", json_text(line));
}

int run_gradcheck(const Flags& flags) {
  std::vector<reference::CheckResult> results = reference::check_all_ops(flags.seed);
  for (reference::CheckResult& result : reference::check_models(flags.seed))
    results.push_back(std::move(result));
  Table table({"check", "value error", "gradient error", "limit", "verdict"});
  size_t failed = 0;
  double worst_value = 0.0;
  double worst_gradient = 0.0;
  for (const reference::CheckResult& result : results) {
    if (!result.passed) ++failed;
    worst_value = worse(worst_value, result.value_error);
    worst_gradient = worse(worst_gradient, result.gradient_error);
    if (flags.json) print_json(result);
    table.add({result.name, error_text(result.value_error), error_text(result.gradient_error),
               error_text(result.limit), result.passed ? "pass" : "FAIL: " + result.detail});
  }
  if (!flags.json) {
    fmt::print("{}\n{} checks, {} failed; worst value error {} (limit {}), worst gradient error {}\n",
               table.text(), results.size(), failed, error_text(worst_value),
               error_text(reference::kValueLimit), error_text(worst_gradient));
  }
  return failed == 0 && !results.empty() ? kExitGood : kExitCheckFailed;
}

}  // namespace

void add_gradcheck_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = app.add_subcommand("gradcheck", "The reference against finite differences");
  command->footer(std::string(kExamples) + "\n" + kExitCodes);
  add_seed_flag(*command, flags->seed, "Of inputs and cotangents");
  set_action(*command, flags, action, run_gradcheck);
}

}  // namespace streambp::verify
