// results.jsonl: one JSON object a line, one line a finished run, each on disk before the next run begins.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace streambp {

/// The member `schema` of every record.
inline constexpr int kRecordSchema = 1;

/// The results.jsonl of a folder, held for this process alone until it is destroyed.
class RecordFile {
 public:
  /// Creates the folder and the file where they are missing, and reads the records that are there; nothing
  /// else is changed before start(). A last line that a killed run left torn is no record: it begins as a
  /// record does and has no end, or is nothing but the NUL bytes of a power cut. Throws InputError: a folder
  /// that can't be created or written to; a results.jsonl that is no regular file, or that another process
  /// holds; naming file and line, any other line that is not a JSON object of this schema.
  explicit RecordFile(const std::filesystem::path& folder);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Those found at the start and those appended since, in the file's order: record i is line i + 1.
  const std::vector<nlohmann::json>& records() const { return records_; }

  /// Repairs the last line. A torn one moves to results.jsonl.torn next to the file, at whose end it is
  /// added, with a warning on stderr; one that lacks no more than its end gets it. Throws InputError.
  void start();

  /// Appends one line in one write, after start(), and waits until it is on disk. Throws InputError where the
  /// disk takes only a part of it (which is then taken back), or where the file was removed meanwhile.
  void append(const nlohmann::json& record);

 private:
  void read();
  void move_torn_line();

  std::filesystem::path path_;
  int file_ = -1;
  std::vector<nlohmann::json> records_;
  std::string torn_;        // the last line, if it is torn
  bool lacks_end_ = false;  // the last line is a record without its newline
};

/// What start() moves torn lines to.
std::filesystem::path torn_lines_path(const std::filesystem::path& results);

/// The records of a results.jsonl that others wrote, without holding it: lines that are no JSON objects are
/// passed over. Throws InputError where the file can't be read or is no regular file.
std::vector<nlohmann::json> read_records(const std::filesystem::path& path);

/// Throws InputError where `folder` holds a results.jsonl with a record that is not of kind "predicted", or a
/// line that is no record: a report of predictions does not replace it.
void check_only_predicted(const std::filesystem::path& folder);

/// One line, without its end; bytes that are not UTF-8 are replaced.
std::string record_line(const nlohmann::json& record);

/// 16 hexadecimal digits that stand for a configuration: 64-bit FNV-1a of its text with sorted keys. The same
/// in every process and on every machine.
std::string record_key(const nlohmann::json& configuration);

}  // namespace streambp
