#include "bench/records/render.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "bench/cli/print.h"
#include "streambp/error.h"

extern char** environ;

namespace streambp::bench {
namespace {

namespace fs = std::filesystem;

std::string python() {
  const char* const chosen = std::getenv("STREAMBP_PYTHON");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  const fs::path of_project = fs::path(STREAMBP_VENV) / "bin" / "python";
  std::error_code error;
  return fs::exists(of_project, error) ? of_project.string() : "python3";
}

/// A file in memory, of this process and of those that it starts.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& text = "") : descriptor_(memfd_create("page", MFD_CLOEXEC)) {
    size_t written = 0;
    while (descriptor_ >= 0 && written < text.size()) {
      const ssize_t count = write(descriptor_, text.data() + written, text.size() - written);
      if (count < 0 && errno != EINTR) break;
      written += static_cast<size_t>(std::max<ssize_t>(count, 0));
    }
    if (descriptor_ < 0 || written < text.size())
      throw InputError("no memory for a page of {} bytes", text.size());
    lseek(descriptor_, 0, SEEK_SET);
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }

  std::string text() const {
    std::string all(static_cast<size_t>(lseek(descriptor_, 0, SEEK_END)), '\0');
    size_t read = 0;
    while (read < all.size()) {
      const ssize_t count =
          pread(descriptor_, all.data() + read, all.size() - read, static_cast<off_t>(read));
      if (count <= 0) break;
      read += static_cast<size_t>(count);
    }
    all.resize(read);
    return all;
  }

 private:
  int descriptor_;
};

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

std::string rendered(const std::string& what, const std::string& kind, const nlohmann::json& input) {
  const MemoryFile in(json_text(input)), out, errors;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path() / "streambp-pages";
  // -B: what is installed may not be written to.
  std::vector<std::string> words{python(), "-B", (folder / "render.py").string(), kind};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  int standard = 0;
  for (const MemoryFile* file : {&in, &out, &errors})
    posix_spawn_file_actions_adddup2(&files, file->descriptor(), standard++);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    throw InputError("{}: {} can't be started: {}; it is drawn by Python, which STREAMBP_PYTHON may name",
                     what, words[0], std::generic_category().message(error));
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return out.text();
  const std::string said = last_line(errors.text());
  throw InputError("{}: {}", what, said.empty() ? words[0] + " failed" : said);
}

}  // namespace streambp::bench
