#include "verify/gradcheck.h"

#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reference/check/check.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/table.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

void print_json(const reference::CheckResult& result) {
  const nlohmann::json line{{"kind", "gradcheck"},
                            {"name", result.name},
                            {"value_error", result.value_error},
                            {"value_limit", reference::kValueLimit},
                            {"gradient_error", result.gradient_error},
                            {"limit", result.limit},
                            {"verdict", result.passed ? "pass" : "FAIL"},
                            {"detail", result.detail}};
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

int run_gradcheck(uint64_t seed, bool json) {
  std::vector<reference::CheckResult> results = reference::check_all_ops(seed);
  for (reference::CheckResult& result : reference::check_models(seed)) results.push_back(std::move(result));
  Table table({"check", "value error", "gradient error", "limit", "verdict"});
  size_t failed = 0;
  double worst_value = 0.0;
  double worst_gradient = 0.0;
  for (const reference::CheckResult& result : results) {
    if (!result.passed) ++failed;
    worst_value = worse(worst_value, result.value_error);
    worst_gradient = worse(worst_gradient, result.gradient_error);
    if (json) print_json(result);
    table.add({result.name, error_text(result.value_error), error_text(result.gradient_error),
               error_text(result.limit), result.passed ? "pass" : "FAIL: " + result.detail});
  }
  if (!json) {
    fmt::print("{}\n{} checks, {} failed; worst value error {} (limit {}), worst gradient error {}\n",
               table.text(), results.size(), failed, error_text(worst_value),
               error_text(reference::kValueLimit), error_text(worst_gradient));
  }
  return failed == 0 && !results.empty() ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp::verify
