// Any text as a results.jsonl: a sweep that goes on with it (--resume) refuses it with an InputError, or has
// its records, keeps every byte of them and of a torn last line, and adds its own; `report` and `records`
// take each of its lines or name it, and make documents without control characters, and tables with a row for
// each record.
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <string_view>
#include <unistd.h>

#include "bench/cli/records.h"
#include "bench/records/flat_records.h"
#include "bench/records/known_records.h"
#include "bench/records/report.h"
#include "bench/records/report_lines.h"
#include "bench/report_pages/csv.h"
#include "bench/report_pages/diff.h"
#include "bench/report_pages/report_sections.h"
#include "streambp/error.h"
#include "verify/tests/fuzz/corpus_files.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

using nlohmann::json;
using namespace streambp;

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

/// One text of four, for what costs the most.
bool is_chosen(const std::string& text) {
  return std::hash<std::string>()(text) % 4 == 0;
}

const fuzz::Scratch& folder() {
  static const fuzz::Scratch scratch;
  return scratch;
}

/// What a cell is looked up by, as of today and as of a version that knew no contents of files.
json configuration(bool with_content) {
  json sought{{"method", "streambp"}, {"settings", {{"chunk", 8}}}};
  if (with_content) sought["settings"]["content"] = "0123456789abcdef";
  return sought;
}

/// Keeps a warning for each torn line out of a log of millions of inputs.
class Silence {
 public:
  Silence() : errors_(::dup(STDERR_FILENO)) {
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nowhere, STDERR_FILENO);
    ::close(nowhere);
  }
  ~Silence() {
    ::dup2(errors_, STDERR_FILENO);
    ::close(errors_);
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int errors_;
};

void require_resumed(const std::string& text) {
  const std::filesystem::path path = folder().write("results.jsonl", text);
  const std::filesystem::path torn = torn_lines_path(path);
  std::filesystem::remove(torn);
  std::vector<json> found;
  {
    RecordFile file(folder().path());
    found = file.records();
    for (const json& record : found) require(record.is_object() && record.at("schema") == kRecordSchema);
    if (is_chosen(text)) require(read_records(path) == found);
    require(fuzz::read_file(path) == text);
    {
      const Silence silence;
      file.start();
    }
    // An end that lacks is all that is new, and what is torn is all that is gone.
    const std::string repaired = fuzz::read_file(path);
    const std::string moved = std::filesystem::exists(torn) ? fuzz::read_file(torn) : "";
    require(repaired + moved == text || repaired + moved == text + "\n");
    require(repaired.empty() || repaired.back() == '\n');
    file.append({{"schema", kRecordSchema}, {"key", record_key(7)}});
    require(fuzz::read_file(path).starts_with(repaired));
    const bench::InputFiles inputs;
    const bench::KnownRecords known(file, inputs);
    known.find(configuration(true));
    known.find(configuration(false));
    if (!found.empty()) ++accepted_count;
  }
  if (!is_chosen(text)) return;
  const RecordFile again(folder().path());
  require(again.records().size() == found.size() + 1);
  require(std::equal(found.begin(), found.end(), again.records().begin()));
}

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
  return found;
}

void require_tables(const bench::ReportLines& lines) {
  std::vector<bench::FiledRecord> filed;
  for (const bench::ReportRecord& line : lines.records) filed.push_back({"out/results.jsonl", line.record});
  const std::vector<std::vector<std::string>> rows = bench::csv_rows(bench::flat_csv(filed));
  require(rows.size() == filed.size() + 1);
  for (const std::vector<std::string>& row : rows) require(row.size() == rows.front().size());
  for (const json& column : bench::flat_columns(filed)) require(column.at("values").size() == filed.size());
  std::vector<json> records;
  for (const bench::ReportRecord& line : lines.records) records.push_back(line.record);
  bench::sweep_table(records);
}

void require_reported(const std::string& text) {
  const std::filesystem::path path = folder().write("results.jsonl", text);
  const bench::ReportLines lines = bench::read_report_lines({path.string()});
  const std::size_t last_line = text.empty() || text.back() == '\n' ? 0 : 1;
  require(lines.records.size() + lines.bad.size() == count(text, "\n") + last_line);
  // Pages of nothing but lines that are no records are all alike, and others are most of the time.
  if (lines.records.empty() ? text.size() % 16 != 0 : !is_chosen(text)) return;
  require_tables(lines);

  const bench::ReportCells cells = bench::report_cells(lines);
  std::size_t shown = cells.verdicts.size() + cells.others.size() + cells.bad.size() - lines.bad.size();
  for (const bench::ReportCell& cell : cells.cells) {
    shown += cell.records.size();
    bench::cell_command(cell);
  }
  require(shown == lines.records.size());
  const bench::Document document = bench::report_document(cells, "");
  // What Python is given, whose templates escape it (verify/tests/bench/report_test.sh), is JSON without
  // control characters.
  const std::string given = bench::document_json(document, folder().path().string()).dump();
  require(
      std::none_of(given.begin(), given.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }));

  const bench::DiffSide before{"before", cells, {}}, after{"after", cells, {}};
  require(bench::diff_records(before, after, 0.02).count(bench::Change::kWorse) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    require_resumed(text);
  } catch (const InputError&) {
  }
  require_reported(text);
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const json environment{{"commit", "7925444"},
                         {"cpu", "Intel"},
                         {"date", "2026-11-22T04:47:42Z"},
                         {"argv", {"streambp-bench", "sweep", "--seq-len", "8,16", "--out", "o"}}};
  const json settings{{"chunk", 8}, {"every", nullptr}, {"threads", 2}};
  json cell{{"batch", 1},
            {"breakdown_at_peak", {{"weights", 64}, {"logits", 8}}},
            {"chunk", 8},
            {"device", "cpu"},
            {"dtype", "float32"},
            {"environment", environment},
            {"error", nullptr},
            {"kind", "measured"},
            {"key", record_key(configuration(true))},
            {"loss", 2.5},
            {"method", "streambp"},
            {"model", "m"},
            {"objective", "sft"},
            {"peak_beyond_resident_bytes", 80},
            {"peak_bytes", 208},
            {"resident_bytes", 128},
            {"schema", kRecordSchema},
            {"seconds", {0.5, 0.25, 0.75}},
            {"seconds_median", 0.5},
            {"seq_len", 8},
            {"settings", settings},
            {"status", "ok"},
            {"tokens_per_second", 16.0}};
  std::vector<json> records{cell};
  cell["method"] = "standard";
  cell["chunk"] = cell["settings"]["chunk"] = nullptr;
  cell["key"] = record_key(configuration(false));
  records.push_back(cell);
  cell["seq_len"] = 16;
  cell["status"] = "oom";
  cell["error"] = "out of memory <b>&'\"";
  cell["kind"] = "predicted";
  records.push_back(cell);
  json repeat = records.front();
  repeat["repeat"] = 2;
  repeat["seconds"] = 0.5;
  repeat["gradient_error"] = 1e-6;
  repeat["worst_parameter"] = "lm_head.weight";
  repeat["choice"] = {{"reason", "fits"}};
  const json verdict{{"schema", kRecordSchema}, {"verdict", "exact"}, {"worst_error", 1e-15}};

  std::string all;
  for (const json& record : records) all += record_line(record) + '\n';
  const std::string first = all.substr(0, all.find('\n') + 1);
  return {"",
          "\n",
          "{}",
          first,
          all,
          all.substr(0, all.size() - 1),
          all.substr(0, all.size() - 40),
          first + std::string(16, '\0'),
          first + "not a record\n" + first,
          first + first,
          record_line(repeat) + '\n' + record_line(repeat) + '\n',
          record_line(verdict) + "\n{\"schema\":1,\"verdict\":null}\n"};
}

std::vector<std::string> dictionary() {
  std::vector<std::string> words{"null",    "true",      "-1",       "1e999",        "1e308",
                                 "0.0",     "1e-320",    "[]",       "{}",           "\"\"",
                                 "\n",      "{\"",       "}\n{",     "\\u0000",      "\\ud800",
                                 "\"a,b\"", "<script>",  "\"</td>",  "\"](x)\"",     "\"`|`\"",
                                 "\"oom\"", "\"error\"", "\"auto\"", "\"bfloat16\"", "9007199254740993"};
  for (const char* member : {"seconds",
                             "seq_len",
                             "batch",
                             "method",
                             "status",
                             "settings",
                             "environment",
                             "argv",
                             "repeat",
                             "loss",
                             "way",
                             "ranks",
                             "zero",
                             "paper_table",
                             "relative_time",
                             "gradient_error",
                             "cpu_seconds_median",
                             "percent_of_gemm",
                             "lora",
                             "hf_gradients"})
    words.push_back(std::string("\"") + member + "\":");
  return words;
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
