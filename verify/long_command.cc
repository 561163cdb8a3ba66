#include "verify/long_command.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "streambp/cli/command_line.h"
#include "streambp/cli/limits.h"
#include "streambp/cli/table.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "verify/error_measure.h"
#include "verify/long/case.h"

namespace streambp::verify {
namespace {

constexpr int kMaxThreads = 4096;

struct Typed {
  std::string names;
  std::string max_memory;
  std::optional<int> threads;
  bool list = false;
  bool quick = false;
  bool json = false;
};

const char* verdict_text(LongVerdict verdict) {
  switch (verdict) {
    case LongVerdict::kPass:
      return "pass";
    case LongVerdict::kFail:
      return "FAIL";
    case LongVerdict::kSkipped:
      return "skipped";
    case LongVerdict::kOutOfMemory:
      return "oom";
  }
  return "";
}

/// The cases that are asked for, in the suite's order.
std::vector<LongCase> chosen_cases(const Typed& typed) {
  std::vector<LongCase> all = long_cases();
  if (typed.names.empty()) {
    if (typed.quick) std::erase_if(all, [](const LongCase& of) { return !of.quick; });
    return all;
  }
  const std::vector<std::string> names = parse_words(typed.names, "--case");
  for (const std::string& name : names) {
    if (std::none_of(all.begin(), all.end(), [&](const LongCase& of) { return of.name == name; }))
      throw InputError("--case '{}': expected a name that --list prints", name);
  }
  std::erase_if(
      all, [&](const LongCase& of) { return std::find(names.begin(), names.end(), of.name) == names.end(); });
  return all;
}

void print_list(const std::vector<LongCase>& cases, bool json) {
  Table table({"case", "crosses", "needs", "part"});
  for (const LongCase& of : cases) {
    if (json) {
      fmt::print("{}\n", nlohmann::json{{"kind", "long case"},
                                        {"case", of.name},
                                        {"crosses", of.crosses},
                                        {"needs_bytes", of.bytes},
                                        {"quick", of.quick}}
                             .dump());
    }
    table.add({of.name, of.crosses, format_bytes(of.bytes), of.quick ? "quick" : "full"});
  }
  if (!json) fmt::print("{}", table.text());
}

nlohmann::json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

void print_json(const LongCase& of, const LongOutcome& outcome) {
  const LongCheck& check = outcome.check;
  const nlohmann::json line{{"kind", "long"},
                            {"case", of.name},
                            {"crosses", of.crosses},
                            {"rows", check.sampled()},
                            {"worst_error", number_or_null(check.worst_error())},
                            {"limit", check.worst_limit()},
                            {"worst", check.worst()},
                            {"seconds", outcome.seconds},
                            {"peak_bytes", outcome.peak_bytes},
                            {"needs_bytes", of.bytes},
                            {"verdict", verdict_text(outcome.verdict)},
                            {"message", outcome.message}};
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::fflush(stdout);
}

std::vector<std::string> table_row(const LongCase& of, const LongOutcome& outcome) {
  const LongCheck& check = outcome.check;
  const bool compared = check.sampled() > 0;
  return {of.name,
          of.crosses,
          fmt::to_string(check.sampled()),
          compared ? error_text(check.worst_error()) : "-",
          compared ? error_text(check.worst_limit()) : "-",
          fmt::format("{:.1f}", outcome.seconds),
          format_bytes(outcome.peak_bytes),
          verdict_text(outcome.verdict)};
}

void print_problem(const LongCase& of, const LongOutcome& outcome) {
  if (outcome.verdict == LongVerdict::kSkipped) {
    fmt::print("\n{}: skipped, {}\n", of.name, outcome.message);
  } else if (outcome.verdict != LongVerdict::kPass) {
    const LongCheck& check = outcome.check;
    const std::string what = outcome.message.empty() ? fmt::format("{}: error {}, limit {}", check.worst(),
                                                                   error_text(check.worst_error()),
                                                                   error_text(check.worst_limit()))
                                                     : outcome.message;
    fmt::print("\n{}: {}\n  streambp-verify long --case {}\n", of.name, what, of.name);
  }
}

int run_long(const Typed& typed) {
  if (const int threads = typed.threads.value_or(1); threads < 1 || threads > kMaxThreads)
    throw InputError("--threads {}: expected 1 to {}", threads, kMaxThreads);
  if (typed.threads) at::set_num_threads(*typed.threads);
  const std::vector<LongCase> cases = chosen_cases(typed);
  const int64_t max_memory = typed.max_memory.empty() ? available_memory() / 100 * 95
                                                      : parse_bytes(typed.max_memory, "--max-memory");
  if (typed.list) {
    print_list(cases, typed.json);
    return kExitGood;
  }
  install_meters();
  const bool progress = isatty(STDERR_FILENO) != 0;
  Table table({"case", "crosses", "rows", "worst error", "limit", "seconds", "peak", "verdict"});
  std::vector<LongOutcome> outcomes;
  for (const LongCase& of : cases) {
    if (progress) fmt::print(stderr, "\r\x1b[2K{} of {}: {}", outcomes.size() + 1, cases.size(), of.name);
    outcomes.push_back(run_long_case(of, max_memory));
    if (progress) fmt::print(stderr, "\r\x1b[2K");
    if (typed.json) print_json(of, outcomes.back());
    table.add(table_row(of, outcomes.back()));
  }
  const auto count = [&](LongVerdict verdict) {
    return std::count_if(outcomes.begin(), outcomes.end(),
                         [&](const LongOutcome& outcome) { return outcome.verdict == verdict; });
  };
  if (!typed.json) {
    fmt::print("{}", table.text());
    for (size_t i = 0; i < cases.size(); ++i) print_problem(cases[i], outcomes[i]);
    fmt::print("\n{} cases: {} passed, {} failed, {} skipped, {} out of memory\n", cases.size(),
               count(LongVerdict::kPass), count(LongVerdict::kFail), count(LongVerdict::kSkipped),
               count(LongVerdict::kOutOfMemory));
  }
  if (count(LongVerdict::kFail) > 0) return kExitCheckFailed;
  return count(LongVerdict::kOutOfMemory) > 0 ? kExitOutOfMemory : kExitGood;
}

constexpr const char* kFooter =
    R"(Each case runs an op or a whole pass at a size that no longer fits into 16, 31 or 32 bits, and compares sampled rows
with plain loops in double. A case that needs more memory than there is, or than --max-memory, is skipped by name.

Exit codes: 0 no case failed; 1 a case failed; 2 bad usage or input; 3 a case ran out of memory and nothing else went wrong.)";

}  // namespace

void add_long_command(CLI::App& app, std::function<int()>& action) {
  const auto typed = std::make_shared<Typed>();
  CLI::App* const command =
      app.add_subcommand("long", "Lengths, products and element counts across 2^16, 2^31 and 2^32");
  command->footer(std::string(kFooter) + "\n" + describe_limits());
  command->add_option("--case", typed->names, "Cases by name (default: all)");
  command->add_flag("--list", typed->list, "Print the cases and what they need, and run none");
  command->add_flag("--quick", typed->quick, "The small part: seconds, and less than 1 GB");
  command->add_option("--max-memory", typed->max_memory,
                      "Skip cases that need more than this, such as 20GB (default: 95 % of what is free)");
  command->add_flag("--json", typed->json, "One JSON object a line on stdout instead of a table");
  command->add_option("--threads", typed->threads, "CPU threads, 1 to 4096 (default: all)");
  command->callback([typed, &action] { action = [typed] { return run_long(*typed); }; });
}

}  // namespace streambp::verify
