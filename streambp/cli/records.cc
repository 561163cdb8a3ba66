#include "streambp/cli/records.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <sys/file.h>
#include <unistd.h>

#include "streambp/error.h"

namespace streambp {
namespace {

/// Null where `line` is not a JSON object.
nlohmann::json parse_object(const std::string& line) {
  nlohmann::json value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return value.is_object() ? value : nlohmann::json(nullptr);
}

/// What was just created in a folder survives a power cut only once the folder itself is on disk.
void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

RecordFile::RecordFile(const std::filesystem::path& folder) : path_(folder / "results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError("{}: the folder can't be created: {}", folder.string(), error.message());
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) throw InputError("{}: can't be written: {}", path_.string(), std::strerror(errno));
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
  std::ifstream stream(path_, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = text.find('\n', begin);
    nlohmann::json record = parse_object(text.substr(begin, end - begin));
    if (end == std::string::npos && record.is_null()) {
      fmt::print(stderr, "{}: warning: line {} was torn by a run that was killed; it is dropped\n",
                 path_.string(), number);
      if (::ftruncate(file_, static_cast<off_t>(begin)) != 0) {
        throw InputError("{}: can't be repaired: {}", path_.string(), std::strerror(errno));
      }
      return;
    }
    if (record.is_null()) throw InputError("{} line {}: expected a JSON object", path_.string(), number);
    if (record.value("schema", nlohmann::json()) != kRecordSchema) {
      throw InputError("{} line {}: expected a record of schema {}", path_.string(), number, kRecordSchema);
    }
    records_.push_back(std::move(record));
    if (end == std::string::npos) {
      if (::write(file_, "\n", 1) != 1)
        throw InputError("{}: can't be written: {}", path_.string(), std::strerror(errno));
      return;
    }
    begin = end + 1;
  }
}

void RecordFile::append(const nlohmann::json& record) {
  const std::string line = record_line(record) + '\n';
  const off_t size = ::lseek(file_, 0, SEEK_END);
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    const std::string reason = written < 0 ? std::strerror(errno) : "the disk is full";
    const bool taken_back = written <= 0 || ::ftruncate(file_, size) == 0;
    throw std::runtime_error(fmt::format("{}: a record can't be written: {}{}", path_.string(), reason,
                                         taken_back ? "" : "; its last line is torn"));
  }
  if (::fsync(file_) != 0 && errno != EINVAL) {  // EINVAL: not a file that can be flushed
    throw std::runtime_error(
        fmt::format("{}: a record can't be flushed to disk: {}", path_.string(), std::strerror(errno)));
  }
  records_.push_back(record);
}

std::string record_line(const nlohmann::json& record) {
  return record.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string record_key(const nlohmann::json& configuration) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : record_line(configuration)) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace streambp
