#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <array>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/records.h"
#include "bench/cli/threads.h"
#include "bench/commands/commands.h"
#include "bench/commands/run_flags.h"
#include "bench/paper/paper.h"
#include "bench/paper/times.h"
#include "bench/records/report.h"
#include "bench/records/report_folder.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "bench/sweep/progress.h"
#include "bench/sweep/sweep.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr const char* kOwnResults = "results";

struct TypedPaper {
  std::string tables = "3,curves,8,9";
  std::string budget = "78GiB";
  std::string measured = kOwnResults;
  std::string out;
  std::string scale, model;
  int64_t thousand = 0, repeats = 0;  // 0: the scale's
  int threads = default_threads();
  bool quiet = false;
  std::vector<std::string> arguments;
};

constexpr const char* kPaperExamples = R"(Examples:
  streambp-bench paper
  streambp-bench paper --table curves,9 --budget 80GiB --out out/paper
  streambp-bench paper --table 1,2 --scale cpu --out out/paper-times

Writes paper.md (the report), cells.csv (a line for each figure) and results.jsonl (the predictions) into --out;
scripts/plot_paper.py draws the curves from them.

Tables 1 and 2 are times, and so measured: on qwen3-cpu with 128 tokens for each thousand of the paper's (--scale cpu), or
on Qwen3-4B at the paper's lengths on a GPU (--scale gpu). Their rows take turns; times.md has the ratios to checkpoint
with intervals next to the paper's, and what counted operations say. Cells that --out has records of are not run again.

Exit codes: 0 written, whatever the verdicts; 1 a cell of tables 1 and 2 ended in an error; 2 bad usage or input.)";

constexpr std::array<std::pair<const char*, PaperTable (*)(const PaperRun&)>, 4> kTables{
    {{"3", paper_lengths}, {"curves", paper_curves}, {"8", paper_linear}, {"9", paper_peaks}}};

std::string record_lines(const std::vector<PaperTable>& tables, const std::vector<std::string>& arguments) {
  const json environment = describe_environment(usable_cores(), /*cuda_index=*/-1, arguments);
  std::string lines;
  for (const PaperTable& table : tables) {
    for (json record : table.records) {
      record.update({{"paper_table", table.name}, {"environment", environment}});
      lines += record_line(record) + "\n";
    }
  }
  return lines;
}

bool is_timed(const std::string& table) {
  return table == "1" || table == "2";
}

int run_times(const TypedPaper& typed, const std::vector<std::string>& tables) {
  if (typed.scale.empty())
    throw InputError("--table {}: a table of times, which are measured; expected --scale cpu or gpu",
                     typed.tables);
  TimesScale scale = times_scale(typed.scale);
  if (!typed.model.empty()) scale.model = typed.model;
  if (typed.thousand > 0) scale.thousand = typed.thousand;
  set_threads(typed.threads, "streambp-bench");
  SweepOptions options;
  options.setup.model = scale.model;
  options.setup.dtype = scale.dtype;
  options.setup.gradient_dtype = scale.dtype;
  options.methods = {Method::kStandard, Method::kCheckpoint, Method::kTiled, Method::kStreambp};
  options.device = scale.device;
  options.threads = typed.threads;
  options.repeats = typed.repeats > 0 ? typed.repeats : scale.repeats;
  options.out = typed.out.empty() ? "results/paper-times-" + scale.name : typed.out;
  options.resume = true;
  options.quiet = typed.quiet;
  options.arguments = typed.arguments;
  std::vector<TimesCell> cells = times_cells(scale, tables);
  std::vector<Cell> run;  // a length that both tables have is run once
  std::vector<size_t> index;
  const Bench bench = open_bench(options);
  std::vector<json> seen;
  for (const TimesCell& cell : cells) {
    const json configuration = cell_configuration(bench, cell.cell);
    const auto found = std::find(seen.begin(), seen.end(), configuration);
    index.push_back(static_cast<size_t>(found - seen.begin()));
    if (found != seen.end()) continue;
    seen.push_back(configuration);
    run.push_back(cell.cell);
  }
  const std::vector<json> records = measure_cells(bench, run);
  for (size_t i = 0; i < cells.size(); ++i) cells[i].record = records[index[i]];
  const std::string report = times_markdown(scale, cells, times_work());
  write_file(options.out / "times.md", report);
  fmt::print("{}", report);
  // Out of memory is a result here, as it is in the paper's tables.
  return exit_code_of(records) == kExitCheckFailed ? kExitCheckFailed : kExitGood;
}

int run_paper(const TypedPaper& typed) {
  const std::vector<std::string> wanted = parse_words(typed.tables, "--table");
  for (const std::string& name : wanted) {
    if (!is_timed(name) &&
        std::none_of(kTables.begin(), kTables.end(), [&](const auto& table) { return name == table.first; }))
      throw InputError("--table '{}': expected some of 1, 2, 3, curves, 8, 9", name);
  }
  if (const auto timed = std::count_if(wanted.begin(), wanted.end(), is_timed); timed > 0) {
    if (timed < static_cast<int64_t>(wanted.size()))
      throw InputError("--table {}: 1 and 2 are measured, the others predicted; expected one kind",
                       typed.tables);
    return run_times(typed, wanted);
  }
  if (!typed.scale.empty())
    throw InputError("--scale {}: of tables 1 and 2; expected --table 1,2", typed.scale);
  const std::filesystem::path out = typed.out.empty() ? "results/paper" : typed.out;
  // Away from this project there may be no such folder; one that is asked for has to be there.
  std::error_code error;
  if (typed.measured != kOwnResults && !std::filesystem::is_directory(typed.measured, error))
    throw InputError("--measured {}: not a folder", typed.measured);
  ProgressLine progress(!typed.quiet);
  PaperRun run{parse_bytes(typed.budget, "--budget"), Measured(typed.measured),
               [&progress](const std::string& text) { progress.show(text); }};
  open_report_folder(out, {"paper.md", "cells.csv", "results.jsonl"});
  std::vector<PaperTable> tables;
  for (const auto& [name, fill] : kTables) {
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) tables.push_back(fill(run));
  }
  progress.clear();
  const std::string report = paper_markdown(tables, run.budget);
  write_file(out / "paper.md", report);
  write_file(out / "cells.csv", paper_csv(tables));
  write_file(out / "results.jsonl", record_lines(tables, typed.arguments));
  fmt::print("{}", report);
  return kExitGood;
}

}  // namespace

void add_paper_command(CLI::App& app, Action& action, int argc, const char* const* argv) {
  const auto typed = std::make_shared<TypedPaper>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "paper",
      "StreamBP's published tables and curves next to predictions, which take no GPU, and measurements");
  command->footer(kPaperExamples);
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    command->add_option(flag, value, help)->capture_default_str();
  };
  text("--table", typed->tables,
       "3, curves (the figure of peak against length), 8 (the linear example), 9; or 1, 2 (times, with "
       "--scale)");
  command->add_option("--scale", typed->scale, "Of tables 1 and 2: cpu or gpu");
  command->add_option("--model", typed->model,
                      "Of tables 1 and 2, instead of the scale's: a folder or a preset");
  command
      ->add_option(
          "--thousand", typed->thousand,
          "Of tables 1 and 2: tokens that stand for 1,000 of the paper's; default 128 (cpu), 1,000 (gpu)")
      ->check(from_to(1, 100000));
  command->add_option("--repeats", typed->repeats, "Of tables 1 and 2: rounds; default 5")
      ->check(from_to(1, 1000));
  command->add_option("--threads", typed->threads, "Of tables 1 and 2")
      ->capture_default_str()
      ->check(from_to(1, most_threads()));
  text("--budget", typed->budget, "Of an 80 GiB card, what tensors can have");
  text("--measured", typed->measured, "Folder in which every results.jsonl is searched for runs on a GPU");
  command->add_option("--out", typed->out,
                      "Folder for the report and its records; default results/paper, of tables 1 and 2 "
                      "results/paper-times-cpu (or -gpu)");
  command->add_flag("--quiet", typed->quiet, "No progress on the terminal");
  command->callback([typed, &action] { action = [typed] { return run_paper(*typed); }; });
}

}  // namespace streambp::bench
