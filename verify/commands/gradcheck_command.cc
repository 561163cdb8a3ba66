// `streambp-verify gradcheck`: the reference's own check, by complex steps and extended precision, on every
// operation and on small models.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "reference/check/check.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

struct GradcheckFlags : CommonFlags {
  uint64_t seed = 0;
  int64_t entries = static_cast<int64_t>(reference::kModelEntries);
};

constexpr const char* kGradcheckExamples = R"(Examples:
  streambp-verify gradcheck
  streambp-verify gradcheck --seed 7 --json
)";

void print_json(const reference::CheckResult& result) {
  const nlohmann::json line{{"kind", "gradcheck"},
                            {"name", result.name},
                            {"value_error", result.value_error},
                            {"gradient_error", result.gradient_error},
                            {"limit", result.limit},
                            {"chain_rule_error", result.chain_rule_error},
                            {"chain_rule_limit", reference::kChainRuleLimit},
                            {"difference_error", result.difference_error},
                            {"difference_limit", reference::kDifferenceLimit},
                            {"complex_steps", result.steps},
                            {"verdict", result.passed ? "pass" : "FAIL"},
                            {"detail", result.detail}};
  fmt::print("{}\n", json_text(line));
}

/// The worst of a list of checks.
struct Worst {
  size_t checks = 0, failed = 0, steps = 0;
  double value = 0.0, gradient = 0.0, chain_rule = 0.0, difference = 0.0, limit = 0.0;

  void note(const reference::CheckResult& result) {
    ++checks;
    if (!result.passed) ++failed;
    steps += result.steps;
    value = worse(value, result.value_error);
    gradient = worse(gradient, result.gradient_error);
    chain_rule = worse(chain_rule, result.chain_rule_error);
    difference = worse(difference, result.difference_error);
    limit = std::max(limit, result.limit);
  }

  void add_to(Table& table, const std::string& name) const {
    table.add({name, fmt::format("{}", checks), error_text(value), error_text(gradient), error_text(limit),
               error_text(chain_rule), error_text(difference)});
  }
};

int run_gradcheck(const GradcheckFlags& flags) {
  Table table({"check", "value error", "gradient error", "limit", "chain rule", "differences", "verdict"});
  const auto report = [&](const std::vector<reference::CheckResult>& results) {
    Worst worst;
    for (const reference::CheckResult& result : results) {
      worst.note(result);
      if (flags.json) print_json(result);
      table.add({result.name, error_text(result.value_error), error_text(result.gradient_error),
                 error_text(result.limit), error_text(result.chain_rule_error),
                 error_text(result.difference_error), result.passed ? "pass" : "FAIL: " + result.detail});
    }
    return worst;
  };
  const Worst ops = report(reference::check_all_ops(flags.seed));
  const Worst models = report(reference::check_models(flags.seed, static_cast<size_t>(flags.entries)));
  // Doubles that agree with extended precision to the last bit are extended precision that is not there.
  const bool has_extended_precision = models.gradient > 0.0;
  const size_t failed = ops.failed + models.failed;
  if (!flags.json) {
    Table summary({"worst of", "checks", "value error", "gradient error", "largest limit", "chain rule",
                   "differences"});
    ops.add_to(summary, "operations and losses");
    models.add_to(summary, "whole models");
    summary.add({"limit", "", "", "", "", error_text(reference::kChainRuleLimit),
                 error_text(reference::kDifferenceLimit)});
    fmt::print("{}\n{}\n{} checks, {} failed; {} complex steps, none at {}\n", table.text(), summary.text(),
               ops.checks + models.checks, failed, ops.steps + models.steps, reference::kKinks);
  }
  if (!has_extended_precision)
    print_line(stderr, "streambp-verify: long double is no wider than double here, nothing was judged");
  return failed == 0 && ops.checks > 0 && models.checks > 0 && has_extended_precision ? kExitGood
                                                                                      : kExitCheckFailed;
}

}  // namespace

void add_gradcheck_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<GradcheckFlags>();
  CLI::App* const command =
      app.add_subcommand("gradcheck", "The reference against complex steps and extended precision");
  command->footer(std::string(kGradcheckExamples) + "\n" + kExitCodes);
  add_seed_flag(*command, "--seed", flags->seed, "Of inputs and cotangents");
  command
      ->add_option(
          "--entries", flags->entries,
          "Entries of each parameter of whole models that are moved one by one; the rest move together")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  set_action(*command, flags, action, run_gradcheck);
}

}  // namespace streambp::verify
