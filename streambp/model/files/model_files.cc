#include "streambp/model/files/model_files.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/runtime/fnv1a.h"

namespace streambp {
namespace {

using std::filesystem::path;

constexpr uint64_t kBlock = uint64_t{1} << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 256;

bool exists_here(const path& file) {
  std::error_code error;
  return std::filesystem::exists(file, error);
}

/// The shards that an index names, as far as they may be names of files: others are Checkpoint's to refuse.
std::set<std::string> shards_of(const path& index) {
  const nlohmann::json document = parse_strict_json(read_text_file(index), index.string());
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  std::set<std::string> shards;
  if (map == document.end() || !map->is_object()) return shards;
  for (const nlohmann::json& shard : *map) {
    if (!shard.is_string()) continue;
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) continue;
    shards.insert(name);
  }
  return shards;
}

/// A regular file that is open for reading; a FIFO is not waited for.
class CopiedFile {
 public:
  explicit CopiedFile(const path& file) : path_(file) {
    descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor_ < 0) fail(std::generic_category().message(errno));
    if (::fstat(descriptor_, &status_) == 0 && S_ISREG(status_.st_mode)) return;
    ::close(descriptor_);
    throw InputError("{}: not a regular file", file.string());
  }
  ~CopiedFile() { ::close(descriptor_); }
  CopiedFile(const CopiedFile&) = delete;
  CopiedFile& operator=(const CopiedFile&) = delete;

  const struct stat& status() const { return status_; }

  /// Adds bytes [begin, end) to `hash`.
  void add(Fnv1a& hash, uint64_t begin, uint64_t end) {
    block_.resize(std::min(kBlock, end - begin));
    while (begin < end) {
      const size_t wanted = std::min(kBlock, end - begin);
      const ssize_t size = ::pread(descriptor_, block_.data(), wanted, static_cast<off_t>(begin));
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) fail(std::generic_category().message(errno));
      if (size == 0) fail("it shrinks while it is read");
      hash.add(std::span(block_).first(static_cast<size_t>(size)));
      begin += static_cast<uint64_t>(size);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw InputError("{}: can't be read: {}", path_.string(), why);
  }

  path path_;
  int descriptor_ = -1;
  struct stat status_ {};
  std::vector<std::byte> block_;
};

}  // namespace

std::vector<path> model_files(const path& folder, bool config_only) {
  std::vector<path> files{folder / kConfigFile};
  if (config_only) return files;
  if (exists_here(folder / kWeightFile)) {
    files.push_back(folder / kWeightFile);
  } else if (exists_here(folder / kWeightIndex)) {
    files.push_back(folder / kWeightIndex);
    for (const std::string& shard : shards_of(folder / kWeightIndex)) {
      if (exists_here(folder / shard)) files.push_back(folder / shard);
    }
  }
  return files;
}

std::vector<path> adapter_files(const path& folder) {
  std::vector<path> files{folder / "adapter_config.json", folder / "adapter_model.safetensors"};
  std::erase_if(files, [](const path& file) { return !exists_here(file); });
  return files;
}

std::string content_key(const std::vector<path>& files, uint64_t whole) {
  Fnv1a hash;
  for (const path& name : files) {
    CopiedFile file(name);
    const auto size = static_cast<uint64_t>(file.status().st_size);
    hash.add(fmt::format("{:?} {} ", name.filename().string(), size));
    if (size <= whole) {
      file.add(hash, 0, size);
      continue;
    }
    const timespec& modified = file.status().st_mtim;
    hash.add(fmt::format("{}.{:09} ", modified.tv_sec, modified.tv_nsec));
    file.add(hash, 0, std::min(size, kBlock));
    for (uint64_t i = 1; i <= kPages && size > kPage; ++i) {
      const uint64_t begin = (size - kPage) / kPages * i;
      file.add(hash, begin, begin + kPage);
    }
    if (size > kPage) file.add(hash, size - kPage, size);
  }
  return hash.text();
}

}  // namespace streambp
