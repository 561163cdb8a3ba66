// `streambp-verify long`.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/cli/command_line.h"
#include "bench/cli/limits.h"
#include "bench/cli/print.h"
#include "bench/cli/table.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/error_measure.h"
#include "verify/long/case.h"
#include "verify/streaming_table.h"

namespace streambp::verify {
namespace {

struct LongFlags : CommonFlags {
  std::string names;
  std::string max_memory;
  bool list = false;
  bool quick = false;
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
std::vector<LongCase> chosen_cases(const LongFlags& flags) {
  std::vector<LongCase> all = long_cases();
  if (flags.names.empty()) {
    if (flags.quick) std::erase_if(all, [](const LongCase& of) { return !of.quick; });
    return all;
  }
  const std::vector<std::string> names = parse_words(flags.names, "--case");
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
      fmt::print("{}\n", json_text({{"kind", "long case"},
                                    {"case", of.name},
                                    {"crosses", of.crosses},
                                    {"needs_bytes", of.bytes},
                                    {"quick", of.quick}}));
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
  fmt::print("{}\n", json_text(line));
  std::fflush(stdout);
}

StreamingTable make_table(const std::vector<LongCase>& cases) {
  size_t name_width = 0, crosses_width = 0;
  for (const LongCase& of : cases) {
    name_width = std::max(name_width, of.name.size());
    crosses_width = std::max(crosses_width, of.crosses.size());
  }
  using enum StreamingTable::Align;
  return StreamingTable({{"case", name_width, kLeft},
                         {"crosses", crosses_width, kLeft},
                         {"rows", 7, kRight},
                         {"worst error", 0, kRight},
                         {"limit", 7, kRight},
                         {"seconds", 0, kRight},
                         {"peak", 7, kRight},
                         {"verdict", 0, kLeft}});
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

int run_long(const LongFlags& flags) {
  const std::vector<LongCase> cases = chosen_cases(flags);
  const int64_t max_memory = flags.max_memory.empty() ? available_memory() / 100 * 95
                                                      : parse_bytes(flags.max_memory, "--max-memory");
  if (flags.list) {
    print_list(cases, flags.json);
    return kExitGood;
  }
  install_meters();
  StreamingTable table = make_table(cases);
  std::vector<LongOutcome> outcomes;
  for (const LongCase& of : cases) {
    outcomes.push_back(run_long_case(of, max_memory));
    if (flags.json) {
      print_json(of, outcomes.back());
    } else {
      table.add(table_row(of, outcomes.back()));
    }
  }
  const auto count = [&](LongVerdict verdict) {
    return std::count_if(outcomes.begin(), outcomes.end(),
                         [&](const LongOutcome& outcome) { return outcome.verdict == verdict; });
  };
  if (!flags.json) {
    for (size_t i = 0; i < cases.size(); ++i) print_problem(cases[i], outcomes[i]);
    fmt::print("\n{} cases: {} passed, {} failed, {} skipped, {} out of memory\n", cases.size(),
               count(LongVerdict::kPass), count(LongVerdict::kFail), count(LongVerdict::kSkipped),
               count(LongVerdict::kOutOfMemory));
  }
  if (count(LongVerdict::kFail) > 0) return kExitCheckFailed;
  return count(LongVerdict::kOutOfMemory) > 0 ? kExitOutOfMemory : kExitGood;
}

constexpr const char* kLongExamples = R"(Examples:
  streambp-verify long --quick
  streambp-verify long --max-memory 20GB

Each case runs an op or a whole pass at a size that no longer fits into 16, 31 or 32 bits, and compares sampled rows
with plain loops in double. A case that needs more memory than there is, or than --max-memory, is skipped by name.
)";

}  // namespace

void add_long_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<LongFlags>();
  CLI::App* const command =
      app.add_subcommand("long", "Lengths, products and element counts across 2^16, 2^31 and 2^32");
  command->footer(fmt::format("{}\n{}\n{}", kLongExamples, describe_limits(), kExitCodes));
  command->add_option("--case", flags->names, "Cases by name (default: all)");
  command->add_flag("--list", flags->list, "Print the cases and what they need, and run none");
  command->add_flag("--quick", flags->quick, "The small part: seconds, and less than 1 GB");
  command->add_option("--max-memory", flags->max_memory,
                      "Skip cases that need more than this, such as 20GB (default: 95 % of what is free)");
  set_action(*command, flags, action, run_long);
}

}  // namespace streambp::verify
