// Writing safetensors files: the header, and a temporary file that replaces the old one in a single
// step.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"
#include "streambp/model/safetensors.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw InputError("{}: cannot be written: {}", path.string(), std::generic_category().message(error));
}

// A new file next to `target` that either replaces it or vanishes.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& target) : target_(target) {
    // A name left behind by a killed process with our number is passed over.
    for (int attempt = 0; fd_ < 0; ++attempt) {
      temporary_ = target_;
      temporary_ += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
      fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno != EEXIST) fail(target_, errno);
    }
  }
  ~ReplacementFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!replaced_) ::unlink(temporary_.c_str());
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(target_, errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  // The data is on disk before the name points at it, and the name before this returns.
  void replace() {
    if (::fsync(fd_) != 0) fail(target_, errno);
    const int closed = ::close(fd_);
    fd_ = -1;
    if (closed != 0) fail(target_, errno);
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(target_, errno);
    replaced_ = true;
    const std::filesystem::path folder = target_.has_parent_path() ? target_.parent_path() : ".";
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) fail(folder, errno);
    const int error = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    // Some file systems cannot flush a directory and say so; the file itself is safe by then.
    if (error != 0 && error != EINVAL) fail(folder, error);
  }

 private:
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  bool replaced_ = false;
};

// `text` as a JSON string.
std::string json_string(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::type_error&) {
    throw InputError("{} is not UTF-8", shown(text));
  }
}

std::string header_text(const std::vector<SafetensorsView>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] { text += text.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    std::string_view comma;
    for (const auto& [key, value] : metadata) {
      text += fmt::format("{}{}:{}", std::exchange(comma, ","), json_string(key), json_string(value));
    }
    text += "}";
  }
  uint64_t begin = 0;
  std::set<std::string_view> names = {"__metadata__"};
  for (const SafetensorsView& tensor : tensors) {
    const std::string name = json_string(tensor.name);
    if (!names.insert(tensor.name).second)
      throw InputError("tensor name {} is taken or reserved", shown(tensor.name));
    const uint64_t size = safetensors_size(tensor.dtype, tensor.shape);
    if (size != tensor.bytes.size()) {
      throw InputError("tensor {} has {} bytes, expected {} for {} {}", shown(tensor.name),
                       tensor.bytes.size(), size, tensor.dtype, shown(tensor.shape));
    }
    separate();
    text += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, tensor.dtype,
                        json(tensor.shape).dump(), begin, begin + size);
    begin += size;
  }
  text += "}";
  // The data starts on a multiple of 8, the largest element size.
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    throw InputError("header of {} bytes, expected at most {}", text.size(), kMaxSafetensorsHeader);
  }
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsView& a, const SafetensorsView& b) {
    const int bits_a = safetensors_bits(a.dtype);
    const int bits_b = safetensors_bits(b.dtype);
    return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
  });
  std::string header;
  try {
    header = header_text(tensors, metadata);
  } catch (const InputError& error) {
    throw InputError("{}: {}", path.string(), error.what());
  }
  const uint64_t length = header.size();
  ReplacementFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const SafetensorsView& tensor : tensors) file.write(tensor.bytes);
  file.replace();
}

}  // namespace streambp
