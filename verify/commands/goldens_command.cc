// `streambp-verify goldens`.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <mutex>
#include <numeric>

#include "bench/cli/command_line.h"
#include "streambp/error.h"
#include "verify/commands/command_flags.h"
#include "verify/commands/commands.h"
#include "verify/golden_cases/check_case.h"
#include "verify/golden_cases/report.h"
#include "verify/jobs.h"

namespace streambp::verify {
namespace {

struct GoldensFlags : CommonFlags {
  std::vector<std::string> folders;
  std::string methods, chunks, part;
  std::string device = "cpu";
  int jobs = 1;
  double limit = 1e-10;
  bool quick = false;
};

constexpr const char* kGoldensExamples = R"(Examples:
  streambp-verify goldens verify/goldens --jobs 4
  streambp-verify goldens verify/goldens/cases/qwen3-sft-b1 --method streambp --chunk 1,16,auto

DIR is laid out as verify/goldens/README.md says. A case that this build does not support is named and counted, and
is no failure.
)";

GoldensOptions read_options(const GoldensFlags& flags) {
  if (!(flags.limit > 0.0 && std::isfinite(flags.limit)))
    throw InputError("--limit {}: expected a finite number above 0", flags.limit);
  GoldensOptions options;
  options.methods = words_or(flags.methods, "--method", {});
  for (const std::string& name : options.methods) {
    if (name == kReferenceName) continue;
    try {
      parse_method(name);
    } catch (const InputError& error) {
      throw InputError("{}, {}", error.what(), kReferenceName);
    }
  }
  if (!flags.chunks.empty()) options.chunks = parse_chunks(flags.chunks, "--chunk");
  options.limit = flags.limit;
  options.quick = flags.quick;
  return options;
}

std::vector<GoldenCase> find_cases(const GoldensFlags& flags) {
  const Part part = parse_part(flags.part);
  std::vector<GoldenCase> all;
  for (const std::string& folder : flags.folders) {
    for (GoldenCase& golden : find_golden_cases(folder)) all.push_back(std::move(golden));
  }
  std::vector<GoldenCase> chosen;
  for (size_t i = 0; i < all.size(); ++i) {
    if (part.holds(i)) chosen.push_back(std::move(all[i]));
  }
  return chosen;
}

int run_goldens(const GoldensFlags& flags) {
  check_jobs(flags.jobs, flags);
  open_checked_device(flags.device);
  const GoldensOptions options = read_options(flags);
  const std::vector<GoldenCase> cases = find_cases(flags);
  StreamingTable table = golden_table(cases);
  std::vector<GoldenResult> results;
  std::vector<size_t> indices(cases.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::mutex output;
  run_jobs(indices, flags.jobs, [&](size_t i) {
    GoldenResult result = check_golden_case(cases[i], options, i);
    const std::lock_guard lock(output);
    results.push_back(std::move(result));
    if (flags.json) {
      fmt::print("{}\n", golden_json(results.back(), options.limit));
      std::fflush(stdout);
    } else {
      table.add(golden_row(results.back()));
    }
  });
  const auto count = [&](const std::string& verdict) {
    return std::count_if(results.begin(), results.end(),
                         [&](const GoldenResult& result) { return result.verdict() == verdict; });
  };
  const auto passed = count("pass"), failed = count("FAIL"), unsupported = count("unsupported");
  if (!flags.json) {
    for (const GoldenResult& result : results) {
      if (!result.failures.empty()) print_golden_failures(result, options.limit);
    }
    if (!results.empty())
      fmt::print("\n{} passed, {} failed, {} unsupported; limit {}\n", passed, failed, unsupported,
                 error_text(options.limit));
  }
  if (passed + failed == 0) {
    throw InputError("goldens: none of the {} cases could be run ({} unsupported)", results.size(),
                     unsupported);
  }
  return failed == 0 ? kExitGood : kExitCheckFailed;
}

}  // namespace

void add_goldens_command(CLI::App& app, std::function<int()>& action) {
  const auto flags = std::make_shared<GoldensFlags>();
  CLI::App* const command = app.add_subcommand(
      "goldens", "All methods on golden cases: losses and gradients of Hugging Face, PEFT, TRL");
  command->footer(std::string(kGoldensExamples) + "\n" + kExitCodes);
  command->add_option("DIR", flags->folders, "Sets (models/, cases/) or single cases")->required();
  command->add_option("--method", flags->methods, "Methods to check, and reference (default: all)");
  command->add_option(
      "--chunk", flags->chunks,
      "Chunks, of methods that have them (default: 1, 7, 16 and those around the case's lengths)");
  add_device_flag(*command, flags->device);
  command->add_option("--limit", flags->limit, "Permitted relative error")->capture_default_str();
  command->add_flag("--quick", flags->quick,
                    "One of those chunks, with one setting; the next case has the next ones");
  add_jobs_flag(*command, flags->jobs);
  add_part_flag(*command, flags->part, "case");
  set_action(*command, flags, action, run_goldens);
}

}  // namespace streambp::verify
