// A folder that one run at a time writes to.
#pragma once

#include <filesystem>

namespace streambp {

/// Creates the folder where it is missing and holds it against other processes' HeldFolder (flock) until it
/// is destroyed. A folder that it has created goes with it where nothing has been written.
class HeldFolder {
 public:
  /// Throws InputError where the folder can't be created, or where another process holds it.
  explicit HeldFolder(const std::filesystem::path& folder);
  ~HeldFolder();
  HeldFolder(const HeldFolder&) = delete;
  HeldFolder& operator=(const HeldFolder&) = delete;

 private:
  std::filesystem::path folder_;
  bool created_ = false;
  int descriptor_ = -1;
};

}  // namespace streambp
