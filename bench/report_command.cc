#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <memory>

#include "bench/commands.h"
#include "bench/report_lines.h"
#include "bench/report_pages/report_sections.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/environment.h"
#include "streambp/cli/print.h"
#include "streambp/error.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

struct Typed {
  std::vector<std::string> folders;
  std::string output, markdown;
};

constexpr const char* kExamples = R"(Examples:
  streambp-bench report out/main --output out/report.html
  streambp-bench report out/mine out/theirs --output report.html --markdown report.md
  streambp-bench report results/compare-2048 > report.md

Of a folder its results.jsonl is read, or where it has none every one below it. A line that is no record is named in the report
and on stderr, and the rest is reported. Without --output and --markdown the report is printed as Markdown.

Exit codes: 0 written; 2 bad usage or input, or a file that can't be written.)";

std::string folder_of(const std::filesystem::path& file) {
  return std::filesystem::absolute(file).lexically_normal().parent_path().string();
}

int run_report(const Typed& typed) {
  for (const auto& [flag, file] : {std::pair{"--output", &typed.output}, {"--markdown", &typed.markdown}}) {
    if (!file->empty()) check_output_file(fmt::format("{} {}:", flag, *file), *file);
  }
  const ReportLines lines = read_report_lines(typed.folders);
  if (lines.records.empty() && lines.paper.empty()) {
    throw InputError(
        "{}: no record{}", typed.folders.front(),
        lines.bad.empty() ? "" : fmt::format("; line {}: {}", lines.bad[0].line, lines.bad[0].why));
  }
  const ReportCells cells = report_cells(lines);
  for (const BadLine& bad : cells.bad)
    print_line(stderr, "streambp-bench: warning: {} line {}: left out: {}", bad.file, bad.line, bad.why);
  const Document document = report_document(cells, "Written by streambp-bench " + version_text());
  if (!typed.output.empty()) write_file(typed.output, html_page(document, folder_of(typed.output)));
  if (!typed.markdown.empty()) write_file(typed.markdown, markdown_page(document, folder_of(typed.markdown)));
  if (typed.output.empty() && typed.markdown.empty()) {
    fmt::print("{}", markdown_page(document, std::filesystem::current_path().string()));
    return kExitGood;
  }
  for (const Entry& line : document.verdict) print_line(stdout, "{}", line.text);
  for (const std::string* file : {&typed.output, &typed.markdown}) {
    if (!file->empty()) print_line(stdout, "written: {}", *file);
  }
  return kExitGood;
}

}  // namespace

void add_report_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<Typed>();
  CLI::App* const command = app.add_subcommand(
      "report", "Records as one HTML file, or Markdown: verdict, charts, every cell with its command");
  command->footer(kExamples);
  command->add_option("folders", typed->folders, "Folders of sweeps, or their results.jsonl")->required();
  command->add_option("--output", typed->output,
                      "The HTML file: self-contained, its links lead to the records");
  command->add_option("--markdown", typed->markdown,
                      "The same as Markdown, with tables in the charts' stead");
  command->callback([typed, &action] { action = [typed] { return run_report(*typed); }; });
}

}  // namespace streambp::bench
