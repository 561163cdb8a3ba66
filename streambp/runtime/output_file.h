// How every file is written that replaces what was there: a temporary file next to it, flushed to disk, that
// takes its name in one step.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

namespace streambp {

/// A file that is there as a whole or not at all: until commit() has returned, an older file of its name is
/// what it was, whether the disk is full or the process killed.
///
/// The target has to be free or a regular file: a device, a FIFO, a folder and a symbolic link (whose target
/// lies elsewhere) are refused by name. A file that is replaced keeps its permissions. What killed processes
/// have left behind next to the target is removed: their temporary files are `NAME.PID-N.tmp`, locked (flock)
/// as long as their writer lives.
class OutputFile {
 public:
  /// Throws InputError naming `path` where it can't be written.
  explicit OutputFile(const std::filesystem::path& path);
  /// Without commit() the temporary file goes.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Throws InputError where the disk does not take all of it.
  void write(std::span<const std::byte> bytes);

  /// The contents are on disk before the name stands for them, and the name before this returns. Throws
  /// InputError.
  void commit();

 private:
  void open_temporary();
  void remove_abandoned() const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

/// Replaces a file by `text`. Throws InputError as OutputFile does.
void write_file(const std::filesystem::path& path, std::string_view text);

/// Replaces a file by what `write` puts into the stream. Throws InputError as OutputFile does, and what
/// `write` throws: then an older file stays.
void write_file(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

/// Throws InputError, beginning with `what` (such as "--trace"), where `path` could not be written now.
/// Leaves nothing behind.
void check_output_file(const std::string& what, const std::filesystem::path& path);

}  // namespace streambp
