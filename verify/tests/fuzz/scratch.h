// A folder for targets whose reader opens files by name.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>

namespace streambp::fuzz {

/// A folder of its own below the system's temporary one (TMPDIR), gone with this object.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "streambp-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) fail(name);
    folder_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return folder_; }

  /// Writes a file; what it held is gone. Not emptied first: ext4 would then wait for the disk.
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    const std::filesystem::path file = folder_ / name;
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) fail(file);
    const auto size = static_cast<ssize_t>(text.size());
    const bool whole =
        ::write(descriptor, text.data(), text.size()) == size && ::ftruncate(descriptor, size) == 0;
    ::close(descriptor);
    if (!whole) fail(file);
    return file;
  }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path) {
    throw std::system_error(errno, std::generic_category(), path.string());
  }

  std::filesystem::path folder_;
};

}  // namespace streambp::fuzz
