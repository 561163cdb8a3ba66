#include "bench/ranks/ranks_start.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "bench/records/known_records.h"
#include "streambp/distributed/transport/local_ranks.h"
#include "streambp/runtime/held_folder.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// In the environment of ranks: that start_ranks has started them, and from the second start on how many
/// records --out had before the first.
constexpr const char* kStarted = "STREAMBP_RANKS_STARTED";
constexpr const char* kRecordsBefore = "STREAMBP_RANKS_RECORDS_BEFORE";

fs::path left_record(const SweepOptions& options) {
  return options.out / ".streambp-out-of-memory.json";
}

/// What a rank has left; null if none has. Throws InputError where something else has the file's name.
json take_record(const SweepOptions& options) {
  const fs::path path = left_record(options);
  check_output_file("--out:", path);
  if (!fs::exists(path)) return nullptr;
  const std::vector<json> records = read_records(path);
  fs::remove(path);
  return records.empty() || records.front().value("status", json()) != "oom" ? json(nullptr)
                                                                             : records.front();
}

void append(const SweepOptions& options, const json& record) {
  RecordFile file(options.out);
  file.start();
  file.append(record);
}

}  // namespace

int start_ranks(int64_t ranks, const SweepOptions& options) {
  const HeldFolder folder(options.out);
  std::vector<std::string> command = options.arguments;
  command.front() = "/proc/self/exe";
  const fs::path results = options.out / "results.jsonl";
  const size_t before = fs::exists(results) ? read_records(results).size() : 0;
  require_resume(results, before, options.resume);
  take_record(options);  // of a run that was killed
  ::setenv(kStarted, "1", /*overwrite=*/1);
  for (;;) {
    const RanksEnd end = run_local_ranks(ranks, command);
    const json record = take_record(options);
    if (record.is_null()) {
      fmt::print(stderr, "{}", end.message);
      return end.status;
    }
    append(options, record);
    print_line(stderr, "{}, {}, {} tokens: {}", record.at("settings").at("zero").get<std::string>(),
               record.at("method").get<std::string>(), record.at("seq_len").get<int64_t>(),
               record.at("error").get<std::string>());
    if (options.json) fmt::print("{}\n", record_line(record));
    std::fflush(stdout);
    ::setenv(kRecordsBefore, std::to_string(before).c_str(), /*overwrite=*/1);
  }
}

bool is_started_rank() {
  return std::getenv(kStarted) != nullptr;
}

std::optional<size_t> first_record_of_run() {
  const char* const before = std::getenv(kRecordsBefore);
  if (!is_started_rank() || before == nullptr) return std::nullopt;
  return std::strtoull(before, nullptr, 10);
}

void leave_record(const SweepOptions& options, const json& record) {
  if (!is_started_rank()) return;
  write_file(left_record(options), record_line(record) + '\n');  // of two ranks that run out, either's
}

}  // namespace streambp::bench
