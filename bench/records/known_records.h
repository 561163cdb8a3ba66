// The records of a results.jsonl that --resume need not measure again.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cli/records.h"
#include "bench/sweep/sweep_files.h"

namespace streambp::bench {

/// Throws InputError, naming `where` and the member, for a record with a member of the wrong type: those that
/// are read again when a record is shown.
void check_record(const nlohmann::json& record, const std::string& where);

/// Throws InputError where a run that does not resume would add to the `count` records that are there.
void require_resume(const std::filesystem::path& results, size_t count, bool resumes);

class KnownRecords {
 public:
  /// `file` and `inputs` have to outlive it.
  KnownRecords(const RecordFile& file, const InputFiles& inputs);

  /// The last record of a cell with this configuration (cell_configuration) and status `ok` or `oom`; null if
  /// there is none. A record from before keys held what is in files (settings.content) counts as long as none
  /// of the files has changed since its date. Throws InputError naming file, line and member for a record
  /// with a member of the wrong type. The record may move when one is appended to the file.
  const nlohmann::json* find(const nlohmann::json& configuration) const;

 private:
  const nlohmann::json* with_key(const std::string& key) const;

  const RecordFile& file_;
  std::map<std::string, size_t> by_key_;  // indices into the file's records
  std::string last_change_;               // of any input file: utc_text()
};

}  // namespace streambp::bench
