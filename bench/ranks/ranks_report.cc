#include "bench/ranks/ranks_report.h"

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/ranks/ranks_start.h"
#include "bench/sweep/recording_files.h"
#include "streambp/runtime/bytes.h"

namespace streambp::bench {

using nlohmann::json;

RanksReport::RanksReport(const Bench& bench, bool is_json, bool resumes, const Rates& rates)
    : options_(bench.options),
      is_json_(is_json),
      file_(options_.out),
      known_(file_, bench.inputs),
      resumes_(resumes),
      first_(first_record_of_run()),
      table_({"ranks", "zero", "exchange", "method", "length", "tokens", "resident", "peak", "pass sends",
              "step sends", "seconds", "loss"}),
      rates_(rates),
      progress_(!is_json) {
  if (!first_) require_resume(file_.path(), file_.records().size(), resumes_);
  file_.start();
}

const json* RanksReport::of_this_run(const json& configuration) const {
  const std::string key = record_key(configuration);
  for (size_t i = first_.value_or(file_.records().size()); i < file_.records().size(); ++i)
    if (file_.records()[i].value("key", json()) == key) return &file_.records()[i];
  return nullptr;
}

bool RanksReport::knows(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks) {
  const json configuration = ranks_configuration(bench, cell, sharing, ranks);
  const json* const own = of_this_run(configuration);
  const json* const record = own == nullptr && resumes_ ? known_.find(configuration) : own;
  if (record == nullptr) return false;
  const bool is_printed = is_json_ && first_ && !caught_up_;
  caught_up_ = caught_up_ || own == &file_.records().back();
  count(*record);
  if (!is_printed) show(*record);
  return true;
}

void RanksReport::count(const json& record) {
  ran_out_ = ran_out_ || record.at("status") == "oom";
  failed_ = failed_ || record.at("status") == "error";
}

void RanksReport::begin(const Cell& cell, const Sharing& sharing, int64_t ranks) {
  progress_.show(fmt::format("{} ranks, {}, {}, {}, {} tokens", ranks, stage_name(sharing.stage),
                             cell.objective, method_name(cell.settings.method), cell.seq_len));
}

void RanksReport::add(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks,
                      bool is_longest, std::optional<Recorder>& recorder) {
  json record = ranks_record(bench, cell, run, ranks);
  record["environment"] = describe_environment(options_.threads, /*cuda_index=*/-1, options_.arguments);
  std::optional<StepOnPaper> step;
  if (bench.device.is_meta() && rates_.are_given()) {
    step = step_on_paper(run, rates_);
    record["step_on_paper"] = {{"operations_per_second", rates_.operations},
                               {"bytes_per_second", rates_.bytes},
                               {"products", step->products},
                               {"sent_by_pass", step->sent_by_pass},
                               {"sent_by_step", step->sent_by_step},
                               {"all", step->all}};
  }
  const json published = published_.add(bench, cell, run, ranks, is_longest, step);
  if (!published.is_null()) record["published"] = published;
  file_.append(record);
  if (recorder) write_recording(options_, recorder->stop(), record);
  if (run.overlap && run.overlap->hidden()) add_overlap(cell, run.sharing, *run.overlap);
  count(record);
  show(record);
  if (!record.at("error").is_string()) return;
  print_line(stderr, "streambp-bench: {} ranks, {}, {}, {} tokens: {}", ranks, stage_name(run.sharing.stage),
             method_name(cell.settings.method), cell.seq_len, record["error"].get<std::string>());
}

void RanksReport::add_longest(const Bench& bench, const Cell& cell,
                              const std::optional<LongestOnRanks>& longest, const Sharing& sharing,
                              int64_t ranks) {
  std::optional<Recorder> none;
  if (longest) return add(bench, longest->cell, longest->run, ranks, /*is_longest=*/true, none);
  progress_.clear();
  print_line(stderr, "{} ranks, {}, {}: weights, gradients and optimizer states do not fit", ranks,
             stage_name(sharing.stage), method_name(cell.settings.method));
}

int RanksReport::print() {
  progress_.clear();
  const int code = failed_ ? kExitCheckFailed : ran_out_ ? kExitOutOfMemory : kExitGood;
  if (is_json_) return code;
  fmt::print("{}", table_.text());
  for (const std::string& line : overlaps_) print_line(stdout, "{}", line);
  for (const std::string& line : published_.lines()) print_line(stdout, "{}", line);
  print_line(stdout, "records: {}", file_.path().string());
  return code;
}

void RanksReport::add_overlap(const Cell& cell, const Sharing& sharing, const Communication& overlap) {
  std::string line = fmt::format("{}, {}, {} tokens: {:.0f} % of {:.3g} s of communication hidden",
                                 stage_name(sharing.stage), method_name(cell.settings.method), cell.seq_len,
                                 100.0 * *overlap.hidden(), overlap.seconds);
  if (const auto before = overlap.hidden_before_last(); before && overlap.last > 0.0)
    line += fmt::format(", {:.0f} % of what comes before the last sums", 100.0 * *before);
  overlaps_.push_back(line);
}

void RanksReport::show(const json& record) {
  progress_.clear();
  if (is_json_) return fmt::print("{}\n", record_line(record));
  const json& settings = record.at("settings");
  const bool divides_rows = settings.contains("divide");
  std::vector<std::string> cells{fmt::format("{}", settings.at("ranks").get<int64_t>()), settings.at("zero"),
                                 divides_rows ? settings.value("exchange", "gather") : "-",
                                 record.at("method"), fmt::format("{}", record.at("seq_len").get<int64_t>())};
  if (record.at("status") == "oom") {
    cells.insert(cells.end(), {"-", "-", "oom", "-", "-", "-", "-"});
    return table_.add(cells);
  }
  const auto text = [&](const char* member) { return fmt::format("{}", record.at(member).get<int64_t>()); };
  const auto size = [&](const char* member) { return format_bytes(record.at(member).get<int64_t>()); };
  const auto sent = [&](const char* member) {
    int64_t bytes = 0;
    for (const auto& [collective, traffic] : record.at(member).items())
      bytes += traffic.at("bytes").get<int64_t>();
    return format_bytes(bytes);
  };
  std::string seconds = "-", loss = "-";
  if (record.contains("step_on_paper"))
    seconds = fmt::format("{:.3f}", record["step_on_paper"].at("all").get<double>());
  if (record.at("seconds_median").is_number())
    seconds = fmt::format("{:.3f}", record["seconds_median"].get<double>());
  if (record.at("loss").is_number()) loss = fmt::format("{:.6f}", record["loss"].get<double>());
  cells.insert(cells.end(), {text("tokens"), size("resident_bytes"), size("peak_bytes"), sent("sent_by_pass"),
                             sent("sent_by_step"), seconds, loss});
  table_.add(cells);
}

}  // namespace streambp::bench
