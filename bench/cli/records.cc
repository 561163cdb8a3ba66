#include "bench/cli/records.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/cli/print.h"
#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/runtime/fnv1a.h"

namespace streambp {
namespace {

/// What every record of a sweep begins with: members are sorted by name.
constexpr std::string_view kRecordStart = R"({"batch":)";

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw InputError("{}: can't be {}: {}", path.string(), what, std::strerror(errno));
}

/// What was just created in a folder survives a power cut only once the folder itself is on disk.
void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

/// Opens a regular file, which is created where it is missing. A link is not followed, a FIFO not waited for.
int open_regular(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(),
                          O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  if (file < 0 && errno == ELOOP)
    throw InputError("{}: is a symbolic link; expected a regular file or a free name", path.string());
  if (file < 0) fail(path, "written");
  struct stat status {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) return file;
  ::close(file);
  throw InputError("{}: expected a regular file or a free name, not a device or FIFO", path.string());
}

std::string read_all(int file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) fail(path, "read");
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t part = ::pread(file, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) fail(path, "read");
    if (part == 0) break;  // somebody truncated it
    size += static_cast<size_t>(part);
  }
  text.resize(size);
  return text;
}

/// Writes all of `text` at the end of the file and waits until it is on disk, or takes back what was written.
void append_text(int file, const std::filesystem::path& path, std::string_view text) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string reason = std::strerror(errno);
      const bool taken_back = ::ftruncate(file, size) == 0;
      throw InputError("{}: can't be written: {}{}", path.string(), reason,
                       taken_back ? "" : "; its last line is torn");
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(file) != 0) fail(path, "flushed to disk");
}

/// A line's JSON object. Throws InputError naming file and line.
nlohmann::json parse_object(std::string_view line, const std::filesystem::path& path, size_t number) {
  const std::string where = fmt::format("{} line {}", path.string(), number);
  nlohmann::json value;
  try {
    value = parse_strict_json(line, where);
  } catch (const InputError& error) {
    throw InputError("{}; expected a JSON object", error.what());
  }
  if (!value.is_object()) throw InputError("{}: expected a JSON object", where);
  return value;
}

/// Whether an unfinished last line was begun by us: as `records` begin, or as those of a sweep do.
bool is_torn_record(std::string_view line, const std::vector<nlohmann::json>& records) {
  if (std::all_of(line.begin(), line.end(), [](char c) { return c == '\0'; })) return true;
  const auto agrees = [&](std::string_view start) {
    const size_t both = std::min(line.size(), start.size());
    return line.substr(0, both) == start.substr(0, both);
  };
  if (agrees(kRecordStart)) return true;
  return !records.empty() && !records.front().empty() &&
         agrees(fmt::format("{{\"{}\":", records.front().begin().key()));
}

}  // namespace

RecordFile::RecordFile(const std::filesystem::path& folder) : path_(folder / "results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError("{}: the folder can't be created: {}", folder.string(), error.message());
  file_ = open_regular(path_);
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw InputError("{}: another run is writing to it", path_.string());
    }
    sync_folder(folder);
    read();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

RecordFile::~RecordFile() {
  ::close(file_);
}

void RecordFile::read() {
  const std::string text = read_all(file_, path_);
  for (size_t begin = 0; begin < text.size();) {
    const size_t number = records_.size() + 1;
    const size_t end = text.find('\n', begin);
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    nlohmann::json record;
    try {
      record = parse_object(line, path_, number);
    } catch (const InputError&) {
      if (end != std::string::npos || !is_torn_record(line, records_)) throw;
      torn_ = line;
      return;
    }
    if (record.value("schema", nlohmann::json()) != kRecordSchema) {
      throw InputError("{} line {}: expected a record of schema {}", path_.string(), number, kRecordSchema);
    }
    records_.push_back(std::move(record));
    lacks_end_ = end == std::string::npos;
    if (lacks_end_) return;
    begin = end + 1;
  }
}

void RecordFile::start() {
  if (lacks_end_) append_text(file_, path_, "\n");
  lacks_end_ = false;
  if (!torn_.empty()) move_torn_line();
  torn_.clear();
}

void RecordFile::move_torn_line() {
  const std::filesystem::path kept = torn_lines_path(path_);
  const int file = open_regular(kept);
  try {
    append_text(file, kept, torn_ + '\n');
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
  sync_folder(path_.parent_path());
  struct stat status {};
  if (::fstat(file_, &status) != 0 ||
      ::ftruncate(file_, status.st_size - static_cast<off_t>(torn_.size())) != 0)
    fail(path_, "repaired");
  print_line(stderr, "{}: warning: line {} was torn by a run that was killed; it is moved to {}",
             path_.string(), records_.size() + 1, kept.filename().string());
}

void RecordFile::append(const nlohmann::json& record) {
  start();
  struct stat ours {
  }, named{};
  const bool same = ::fstat(file_, &ours) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                    ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
  if (!same) {
    throw InputError(
        "{}: was removed or replaced while this run was writing to it; expected it to be left alone",
        path_.string());
  }
  append_text(file_, path_, record_line(record) + '\n');
  records_.push_back(record);
}

std::filesystem::path torn_lines_path(const std::filesystem::path& results) {
  std::filesystem::path path = results;
  path += ".torn";
  return path;
}

std::vector<nlohmann::json> read_records(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  std::vector<nlohmann::json> records;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    try {
      records.push_back(parse_object(std::string_view(text).substr(begin, end - begin), path, 0));
    } catch (const InputError&) {
    }
  }
  return records;
}

void check_only_predicted(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(folder / "results.jsonl", error))) return;
  const RecordFile file(folder);
  for (const nlohmann::json& record : file.records()) {
    if (record.value("kind", nlohmann::json()) == "predicted") continue;
    throw InputError("{}: holds measured records, which would be lost; expected another folder",
                     file.path().string());
  }
}

std::string record_line(const nlohmann::json& record) {
  return record.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string record_key(const nlohmann::json& configuration) {
  Fnv1a hash;
  hash.add(record_line(configuration));
  return hash.text();
}

}  // namespace streambp
