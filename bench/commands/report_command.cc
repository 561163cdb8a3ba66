#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <memory>
#include <tuple>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/commands/commands.h"
#include "bench/commands/output_rules.h"
#include "bench/records/render.h"
#include "bench/records/report_lines.h"
#include "bench/report_pages/diff.h"
#include "bench/report_pages/report_sections.h"
#include "streambp/error.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

struct TypedReport {
  std::vector<std::string> folders;
  std::string output, markdown;
  bool diff = false;
  double threshold = 0.02;
};

constexpr const char* kReportExamples = R"(Examples:
  streambp-bench report out/main --output out/report.html
  streambp-bench report out/mine out/theirs --output report.html --markdown report.md
  streambp-bench report results/compare-2048 > report.md

  streambp-bench report out/before out/after --diff --output diff.html

Of a folder its results.jsonl is read, or where it has none every one below it. A line that is no record is named in the report
and on stderr, and the rest is reported. Without --output and --markdown the report is printed as Markdown. Pages are drawn by Python, with jinja2 and
matplotlib: the project's environment and the wheel's have them, STREAMBP_PYTHON names another.

--diff compares the cells of two folders: memory, and time with an interval of the repeats; SAME, BETTER, WORSE or AMBIGUOUS with the numbers that
decided. Cells of one folder only are listed. Of *.csv files in both folders that sweep --timeline has written, the timelines of one cell are laid over one another.

Exit codes: 0 written; 1 --diff found a cell that is WORSE; 2 bad usage or input, or a file that can't be written.)";

std::string folder_of(const std::filesystem::path& file) {
  return std::filesystem::absolute(file).lexically_normal().parent_path().string();
}

/// The cells of folders; lines that are no records are named on stderr. `lines` has to outlive them.
ReportCells cells_of(const ReportLines& lines, const std::string& named) {
  if (lines.records.empty() && lines.paper.empty()) {
    throw InputError(
        "{}: no record{}", named,
        lines.bad.empty() ? "" : fmt::format("; line {}: {}", lines.bad[0].line, lines.bad[0].why));
  }
  ReportCells cells = report_cells(lines);
  for (const BadLine& bad : cells.bad)
    print_line(stderr, "streambp-bench: warning: {} line {}: left out: {}", bad.file, bad.line, bad.why);
  return cells;
}

std::vector<NamedFile> outputs_of(const TypedReport& typed) {
  std::vector<NamedFile> outputs;
  for (const auto& [flag, file] : {std::pair{"--output", &typed.output}, {"--markdown", &typed.markdown}}) {
    if (!file->empty()) outputs.push_back({flag, *file});
  }
  return outputs;
}

/// Refuses to write over what the report is made of.
void check_inputs(const TypedReport& typed, const ReportLines& lines,
                  const std::vector<Timeline>& timelines) {
  std::vector<NamedFile> inputs;
  for (const std::string& file : lines.files) inputs.push_back({"records", file});
  for (const PaperRow& row : lines.paper) inputs.push_back({"cells", row.file});
  for (const Timeline& timeline : timelines) inputs.push_back({"timeline", timeline.file});
  check_distinct(outputs_of(typed), inputs);
}

/// Writes the files that were asked for, or Markdown on stdout.
void write_report(const TypedReport& typed, const Document& document) {
  if (typed.output.empty() && typed.markdown.empty()) {
    const std::string folder = std::filesystem::current_path().string();
    fmt::print("{}", rendered("report", "markdown", document_json(document, folder)));
    return;
  }
  for (const auto& [flag, kind, file] : {std::tuple("--output", "html", &typed.output),
                                         std::tuple("--markdown", "markdown", &typed.markdown)}) {
    if (!file->empty()) write_file(*file, rendered(flag, kind, document_json(document, folder_of(*file))));
  }
  for (const Entry& line : document.verdict) print_line(stdout, "{}", line.text);
  for (const std::string* file : {&typed.output, &typed.markdown}) {
    if (!file->empty()) print_line(stdout, "written: {}", *file);
  }
}

int run_diff(const TypedReport& typed, const std::string& made) {
  const std::string &a = typed.folders[0], &b = typed.folders[1];
  const ReportLines before_lines = read_report_lines({a}), after_lines = read_report_lines({b});
  const DiffSide before{a, cells_of(before_lines, a), read_timelines(a)};
  const DiffSide after{b, cells_of(after_lines, b), read_timelines(b)};
  check_inputs(typed, before_lines, before.timelines);
  check_inputs(typed, after_lines, after.timelines);
  write_report(typed, diff_document(before, after, typed.threshold, made));
  return diff_records(before, after, typed.threshold).count(Change::kWorse) > 0 ? kExitCheckFailed
                                                                                : kExitGood;
}

void check_outputs(const TypedReport& typed) {
  const std::vector<NamedFile> outputs = outputs_of(typed);
  check_distinct(outputs, {});
  check_replaces_no_records(outputs);
  for (const NamedFile& output : outputs)
    check_output_file(fmt::format("{} {}:", output.flag, output.path.string()), output.path);
}

int run_report(const TypedReport& typed) {
  check_outputs(typed);
  if (!(typed.threshold >= 0.0 && typed.threshold < 1.0))
    throw InputError("--threshold {}: expected a part of 1, such as 0.02", typed.threshold);
  if (typed.diff && typed.folders.size() != 2)
    throw InputError("--diff: {} folders given, expected two: before and after", typed.folders.size());
  const std::string made = "Written by streambp-bench " + version_text();
  if (typed.diff) return run_diff(typed, made);
  const ReportLines lines = read_report_lines(typed.folders);
  check_inputs(typed, lines, {});
  write_report(typed, report_document(cells_of(lines, typed.folders.front()), made));
  return kExitGood;
}

}  // namespace

void add_report_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<TypedReport>();
  CLI::App* const command = app.add_subcommand(
      "report", "Records as one HTML file, or Markdown: verdict, charts, every cell with its command");
  command->footer(kReportExamples);
  command->add_option("folders", typed->folders, "Folders of sweeps, or their results.jsonl")->required();
  command->add_option("--output", typed->output,
                      "The HTML file: self-contained, its links lead to the records");
  command->add_option("--markdown", typed->markdown,
                      "The same as Markdown, with tables in the charts' stead");
  CLI::Option* const diff =
      command->add_flag("--diff", typed->diff, "What changed from the first of two folders to the second");
  command
      ->add_option("--threshold", typed->threshold, "--diff: what part of a time may change and be the same")
      ->capture_default_str()
      ->needs(diff);
  command->callback([typed, &action] { action = [typed] { return run_report(*typed); }; });
}

}  // namespace streambp::bench
