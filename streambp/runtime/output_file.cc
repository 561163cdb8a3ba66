#include "streambp/runtime/output_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <streambuf>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"

namespace streambp {
namespace {

constexpr mode_t kPermissions = 07777;

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw InputError("{}: can't be written: {}", path.string(), std::generic_category().message(error));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

const char* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// What has the name now, if anything does. Throws InputError unless that is a file of ours to replace.
std::optional<struct stat> replaceable(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    fail(path, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError("{}: can't be written: it is {}; expected a regular file or a free name", path.string(),
                     kind_of(status.st_mode));
  }
  if (::access(path.c_str(), W_OK) != 0) fail(path, errno);
  return status;
}

/// Whether `name` is `target`.PID-N.tmp.
bool is_temporary_of(const std::string& target, const std::string& name) {
  if (!name.starts_with(target + '.') || !name.ends_with(".tmp")) return false;
  const std::string middle = name.substr(target.size() + 1, name.size() - target.size() - 5);
  const size_t dash = middle.find('-');
  const auto digits = [](std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  return dash != std::string::npos && digits(std::string_view(middle).substr(0, dash)) &&
         digits(std::string_view(middle).substr(dash + 1));
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(folder, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems can't flush a folder and say so; the file itself is safe by then.
  if (error != 0 && error != EINVAL) fail(folder, error);
}

/// A stream's characters, in blocks.
class OutputBuffer : public std::streambuf {
 public:
  explicit OutputBuffer(OutputFile& file) : file_(file) {
    setp(block_.data(), block_.data() + block_.size());
  }

  int sync() override {
    file_.write(std::as_bytes(std::span(pbase(), static_cast<size_t>(pptr() - pbase()))));
    setp(block_.data(), block_.data() + block_.size());
    return 0;
  }

 protected:
  int_type overflow(int_type c) override {
    sync();
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c)
                                                           : sputc(traits_type::to_char_type(c));
  }

 private:
  OutputFile& file_;
  std::array<char, 1 << 16> block_{};
};

}  // namespace

OutputFile::OutputFile(const std::filesystem::path& path) : target_(path) {
  if (!path.has_filename()) throw InputError("{}: can't be written: not the name of a file", path.string());
  const std::optional<struct stat> old = replaceable(target_);
  remove_abandoned();
  open_temporary();
  // Some file systems have no permissions to set.
  if (old && ::fchmod(descriptor_, old->st_mode & kPermissions) != 0 && errno != EPERM) {
    const int error = errno;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    fail(target_, error);
  }
}

OutputFile::~OutputFile() {
  if (!committed_) ::unlink(temporary_.c_str());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::open_temporary() {
  for (int attempt = 0;; ++attempt) {
    temporary_ = target_;
    temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) fail(target_, errno);
    ::flock(descriptor_, LOCK_EX);
    // Another process may have taken it for an abandoned one before it was locked.
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return;
    ::close(descriptor_);
  }
}

void OutputFile::remove_abandoned() const {
  std::error_code error;
  const std::string name = target_.filename().string();
  for (std::filesystem::directory_iterator entry(folder_of(target_), error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_temporary_of(name, entry->path().filename().string())) continue;
    const int descriptor = ::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat status {};
    const bool abandoned = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                           ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    if (abandoned) ::unlink(entry->path().c_str());
    ::close(descriptor);
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(target_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::commit() {
  if (::fsync(descriptor_) != 0) fail(target_, errno);
  replaceable(target_);  // what has its name by now
  // Closed only after this: the lock goes with the descriptor.
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(target_, errno);
  committed_ = true;
  sync_folder(folder_of(target_));
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write) {
  OutputFile file(path);
  OutputBuffer buffer(file);
  std::ostream stream(&buffer);
  stream.exceptions(std::ios::badbit);  // what write() throws, and not its shadow
  write(stream);
  stream.flush();
  file.commit();
}

void check_output_file(const std::string& what, const std::filesystem::path& path) {
  try {
    OutputFile{path};
  } catch (const InputError& error) {
    throw InputError("{} {}", what, error.what());
  }
}

}  // namespace streambp
