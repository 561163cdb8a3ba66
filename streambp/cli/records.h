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
  /// Creates the folder and the file where they are missing, and reads the records that are there. A last
  /// line that a killed run left torn is cut off, with a warning on stderr; a last line that lacks no more
  /// than its end gets it. Throws InputError: a folder that can't be created or written to; a file that
  /// another process holds; naming file and line, any other line that is not a JSON object of this schema.
  explicit RecordFile(const std::filesystem::path& folder);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Those found at the start and those appended since, in the file's order.
  const std::vector<nlohmann::json>& records() const { return records_; }

  /// Appends one line in one write and waits until it is on disk. Throws std::runtime_error where the disk
  /// takes only a part of it (which is then taken back).
  void append(const nlohmann::json& record);

 private:
  void read();

  std::filesystem::path path_;
  int file_ = -1;
  std::vector<nlohmann::json> records_;
};

/// One line, without its end; bytes that are not UTF-8 are replaced.
std::string record_line(const nlohmann::json& record);

/// 16 hexadecimal digits that stand for a configuration: 64-bit FNV-1a of its text with sorted keys. The same
/// in every process and on every machine.
std::string record_key(const nlohmann::json& configuration);

}  // namespace streambp
