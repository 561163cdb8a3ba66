#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <array>
#include <memory>

#include "bench/commands.h"
#include "bench/paper/paper.h"
#include "bench/progress.h"
#include "bench/report_folder.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/environment.h"
#include "streambp/cli/records.h"
#include "streambp/error.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr const char* kOwnResults = "results";

struct Typed {
  std::string tables = "3,curves,8,9";
  std::string budget = "78GiB";
  std::string measured = kOwnResults;
  std::string out = "results/paper";
  bool quiet = false;
  std::vector<std::string> arguments;
};

constexpr const char* kExamples = R"(Examples:
  streambp-bench paper
  streambp-bench paper --table curves,9 --budget 80GiB --out out/paper

Writes paper.md (the report), cells.csv (a line for each figure) and results.jsonl (the predictions) into --out;
scripts/plot_paper.py draws the curves from them.

Exit codes: 0 written, whatever the verdicts; 2 bad usage or input.)";

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

int run_paper(const Typed& typed) {
  const std::filesystem::path out = typed.out;
  const std::vector<std::string> wanted = parse_words(typed.tables, "--table");
  for (const std::string& name : wanted) {
    if (std::none_of(kTables.begin(), kTables.end(), [&](const auto& table) { return name == table.first; }))
      throw InputError("--table '{}': expected some of 3, curves, 8, 9", name);
  }
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
  const auto typed = std::make_shared<Typed>();
  typed->arguments.assign(argv, argv + argc);
  CLI::App* const command = app.add_subcommand(
      "paper",
      "StreamBP's published tables and curves next to predictions, which take no GPU, and measurements");
  command->footer(kExamples);
  const auto text = [&](const char* flag, std::string& value, const std::string& help) {
    command->add_option(flag, value, help)->capture_default_str();
  };
  text("--table", typed->tables, "3, curves (the figure of peak against length), 8 (the linear example), 9");
  text("--budget", typed->budget, "Of an 80 GiB card, what tensors can have");
  text("--measured", typed->measured, "Folder in which every results.jsonl is searched for runs on a GPU");
  text("--out", typed->out, "Folder for paper.md, cells.csv and results.jsonl");
  command->add_flag("--quiet", typed->quiet, "No progress on the terminal");
  command->callback([typed, &action] { action = [typed] { return run_paper(*typed); }; });
}

}  // namespace streambp::bench
