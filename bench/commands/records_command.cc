#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <memory>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "bench/commands/commands.h"
#include "bench/commands/output_rules.h"
#include "bench/records/flat_records.h"
#include "bench/records/known_records.h"
#include "bench/records/render.h"
#include "bench/records/report.h"
#include "streambp/error.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

struct TypedRecords {
  std::vector<std::string> folders;
  bool flat = false;
  std::string parquet;
};

constexpr const char* kRecordsExamples = R"(Examples:
  streambp-bench records out/main
  streambp-bench records out/mine out/theirs
  streambp-bench records out/main --flat > records.csv
  streambp-bench records out/mine out/theirs --parquet records.parquet

The table is that of sweep; of several folders it names every setting in which they differ. What the members of a record mean:
bench/records.md.

Exit codes: 0 printed or written; 2 bad usage or input, or a file that can't be written.)";

int run_records(const TypedRecords& typed) {
  std::vector<NamedFile> files;
  for (const std::string& folder : typed.folders) {
    const std::filesystem::path file = folder;
    files.push_back({"records", std::filesystem::is_directory(file) ? file / "results.jsonl" : file});
  }
  if (!typed.parquet.empty()) {
    const std::vector<NamedFile> output{{"--parquet", typed.parquet}};
    check_distinct(output, files);
    check_replaces_no_records(output);
    check_output_file(fmt::format("--parquet {}:", typed.parquet), typed.parquet);
  }
  std::vector<FiledRecord> filed;
  for (const auto& [what, file] : files) {
    for (const nlohmann::json& record : read_records(file)) {
      check_record(record, file.string());
      filed.push_back({file.string(), record});
    }
  }
  if (filed.empty()) throw InputError("{}: no record", typed.folders.front());
  if (!typed.parquet.empty()) {
    write_file(typed.parquet, rendered("--parquet", "parquet", flat_columns(filed)));
    print_line(stdout, "written: {}: {} records", typed.parquet, filed.size());
    return kExitGood;
  }
  if (typed.flat) {
    fmt::print("{}", flat_csv(filed));
    return kExitGood;
  }
  std::vector<nlohmann::json> records;
  for (const FiledRecord& one : filed) records.push_back(one.record);
  fmt::print("{}", sweep_table(records));
  return kExitGood;
}

}  // namespace

void add_records_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<TypedRecords>();
  CLI::App* const command =
      app.add_subcommand("records", "The records of sweeps as a table, or flat as CSV or Parquet");
  command->footer(kRecordsExamples);
  command->add_option("folders", typed->folders, "Folders of sweeps, or their results.jsonl")->required();
  CLI::Option* const flat =
      command->add_flag("--flat", typed->flat, "CSV: a column for each member, such as settings.chunk");
  command->add_option("--parquet", typed->parquet, "Write the same columns to a Parquet file, by pyarrow")
      ->excludes(flat);
  command->callback([typed, &action] { action = [typed] { return run_records(*typed); }; });
}

}  // namespace streambp::bench
