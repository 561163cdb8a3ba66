// What the tests of file readers share: a folder that vanishes, and a check that something is refused with a
// good message.
#pragma once

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <initializer_list>
#include <iterator>
#include <stdlib.h>
#include <string>
#include <string_view>

#include "streambp/error.h"

namespace streambp {

/// A new empty folder, removed with all it holds at the end of the scope.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "streambp-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Writes `bytes` to the file `name` of the folder and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

  /// Number of entries in the folder.
  std::ptrdiff_t count() const { return std::distance(std::filesystem::directory_iterator(path_), {}); }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Success if `action()` throws an InputError whose message is one line of printable ASCII and contains every
/// one of `parts`.
template <typename Action, typename... Parts>
testing::AssertionResult refused(Action&& action, const Parts&... parts) {
  try {
    action();
  } catch (const InputError& error) {
    const std::string message = error.what();
    for (const std::string& part : std::initializer_list<std::string>{std::string(parts)...}) {
      if (message.find(part) == std::string::npos) {
        return testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
      }
    }
    for (const char c : message) {
      if (c < ' ' || c > '~') return testing::AssertionFailure() << "not one printable line: " << message;
    }
    return testing::AssertionSuccess() << message;
  }
  return testing::AssertionFailure() << "accepted";
}

}  // namespace streambp
