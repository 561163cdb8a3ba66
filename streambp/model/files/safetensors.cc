#include "streambp/model/files/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is copied as it is");

constexpr uint64_t kLengthBytes = 8;

struct Dtype {
  std::string_view name;
  int bits;
};

// enum Dtype of the reference reader.
constexpr std::array kDtypes = {
    Dtype{"BOOL", 8},    Dtype{"F4", 4},          Dtype{"F6_E2M3", 6},     Dtype{"F6_E3M2", 6},
    Dtype{"U8", 8},      Dtype{"I8", 8},          Dtype{"F8_E5M2", 8},     Dtype{"F8_E4M3", 8},
    Dtype{"F8_E8M0", 8}, Dtype{"F8_E4M3FNUZ", 8}, Dtype{"F8_E5M2FNUZ", 8}, Dtype{"I16", 16},
    Dtype{"U16", 16},    Dtype{"F16", 16},        Dtype{"BF16", 16},       Dtype{"I32", 32},
    Dtype{"U32", 32},    Dtype{"F32", 32},        Dtype{"C64", 64},        Dtype{"F64", 64},
    Dtype{"I64", 64},    Dtype{"U64", 64},
};

// A non-negative integer as JSON spells it: no sign, no fraction, no exponent.
uint64_t unsigned_number(const json& value, const char* what) {
  if (!value.is_number_unsigned())
    throw InputError("{} {} is not a non-negative integer", what, shown(value));
  return value.get<uint64_t>();
}

const json& member(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) throw InputError("{} is missing", key);
  return *at;
}

SafetensorsEntry parse_entry(const json& info) {
  if (!info.is_object()) throw InputError("expected an object, found {}", shown(info));
  const json& dtype = member(info, "dtype");
  const json& shape = member(info, "shape");
  const json& offsets = member(info, "data_offsets");
  if (!dtype.is_string()) throw InputError("dtype {} is not a string", shown(dtype));
  if (!shape.is_array()) throw InputError("shape {} is not an array", shown(shape));
  if (!offsets.is_array() || offsets.size() != 2) {
    throw InputError("data_offsets {} is not an array of two", shown(offsets));
  }
  SafetensorsEntry entry;
  entry.dtype = dtype.get<std::string>();
  for (const json& size : shape) {
    const uint64_t value = unsigned_number(size, "size");
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      throw InputError("size {} in shape overflows 63 bits", value);
    }
    entry.shape.push_back(static_cast<int64_t>(value));
  }
  entry.begin = unsigned_number(offsets[0], "offset");
  entry.end = unsigned_number(offsets[1], "offset");
  if (entry.end < entry.begin)
    throw InputError("data_offsets [{}, {}] run backwards", entry.begin, entry.end);
  const uint64_t expected = safetensors_size(entry.dtype, entry.shape);
  if (entry.end - entry.begin != expected) {
    throw InputError("data_offsets [{}, {}] hold {} bytes, expected {} for {} {}", entry.begin, entry.end,
                     entry.end - entry.begin, expected, entry.dtype, shown(shape));
  }
  return entry;
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& where) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;
  if (!value.is_object()) throw InputError("{}: __metadata__ is not an object", where);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      throw InputError("{}: __metadata__ {} is {}, expected a string", where, shown(key), shown(text));
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The tensors, in the order of their offsets, must cover the data section exactly.
void check_cover(const std::map<std::string, SafetensorsEntry>& entries, uint64_t data_bytes,
                 const std::string& where) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> sorted;
  sorted.reserve(entries.size());
  for (const auto& item : entries) sorted.push_back(&item);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t covered = 0;
  for (const auto* item : sorted) {
    const auto& [name, entry] = *item;
    if (entry.begin != covered) {
      throw InputError("{}: tensor {} begins at byte {} of the data, expected {} ({})", where, shown(name),
                       entry.begin, covered,
                       entry.begin < covered ? "tensors overlap" : "tensors leave a hole");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw InputError("{}: {} bytes after the header, expected {} for the tensors it lists", where, data_bytes,
                     covered);
  }
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// A regular file, open for reading.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path)
      // O_NONBLOCK: opening a pipe must not wait for a writer before it is refused.
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat status = {};
    if (file_.get() < 0 || ::fstat(file_.get(), &status) != 0) fail("cannot be opened");
    if (S_ISDIR(status.st_mode))
      throw InputError("{}: not a regular file but a folder; expected one safetensors file", path_.string());
    if (!S_ISREG(status.st_mode)) throw InputError("{}: not a regular file", path_.string());
    size_ = static_cast<uint64_t>(status.st_size);
  }

  const std::filesystem::path& path() const { return path_; }
  /// When it was opened.
  uint64_t size() const { return size_; }

  void read(uint64_t offset, std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t count =
          ::pread(file_.get(), into.data(), std::min(into.size(), kMostAtOnce), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("cannot be read");
      if (count == 0) {
        struct stat status = {};
        ::fstat(file_.get(), &status);
        throw InputError("{}: {} bytes, it had {} when it was opened: it was truncated meanwhile",
                         path_.string(), status.st_size, size_);
      }
      into = into.subspan(static_cast<std::size_t>(count));
      offset += static_cast<uint64_t>(count);
    }
  }

 private:
  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

  [[noreturn]] void fail(const char* what) const {
    throw InputError("{}: {}: {}", path_.string(), what, std::generic_category().message(errno));
  }

  std::filesystem::path path_;
  FileDescriptor file_;
  uint64_t size_ = 0;
};

// What a file is instead that begins so; empty: not known.
std::string other_format(std::span<const std::byte> head) {
  const std::string_view begin(reinterpret_cast<const char*>(head.data()), head.size());
  if (begin.starts_with("PK")) return ": this is a zip archive, as numpy.savez and torch.save write them";
  if (begin.starts_with("\x93NUMPY")) return ": this is numpy's .npy";
  if (begin.starts_with("GGUF")) return ": this is GGUF";
  if (begin.starts_with("{")) return ": this is JSON";
  return {};
}

// The length of the header of a file of `size` bytes that begins with `head`, its first 8 or all there are.
uint64_t header_length(std::span<const std::byte> head, uint64_t size, const std::string& where) {
  if (head.size() < kLengthBytes)
    throw InputError("{}: {} bytes, expected at least the 8 of a safetensors header length", where, size);
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(head[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader)
    throw InputError("{}: header length {}, expected at most {} of a safetensors file{}", where, length,
                     kMaxSafetensorsHeader, other_format(head));
  if (length > size - kLengthBytes)
    throw InputError("{}: header length {}, but only {} bytes follow", where, length, size - kLengthBytes);
  return length;
}

// The header `text` of a file of `size` bytes.
SafetensorsHeader parse_header(std::string_view text, uint64_t size, const std::string& where) {
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + text.size();
  const json document = parse_strict_json(text, where + ": header");
  if (!document.is_object()) throw InputError("{}: header is not a JSON object", where);
  for (const auto& [name, info] : document.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(info, where);
      continue;
    }
    try {
      header.entries.emplace(name, parse_entry(info));
    } catch (const InputError& error) {
      throw InputError("{}: tensor {}: {}", where, shown(name), error.what());
    }
  }
  check_cover(header.entries, size - header.data_begin, where);
  return header;
}

SafetensorsHeader read_header(const InputFile& file) {
  const std::string where = file.path().string();
  std::array<std::byte, kLengthBytes> head{};
  const auto begin = std::span(head).first(std::min<uint64_t>(head.size(), file.size()));
  file.read(0, begin);
  std::string text(header_length(begin, file.size(), where), '\0');
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file.size(), where);
}

}  // namespace

struct SafetensorsFile::Contents {
  explicit Contents(const std::filesystem::path& path) : file(path), header(read_header(file)) {}

  InputFile file;
  SafetensorsHeader header;
};

int safetensors_bits(std::string_view dtype) {
  const auto at =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return d.name == dtype; });
  return at == kDtypes.end() ? 0 : at->bits;
}

uint64_t safetensors_size(std::string_view dtype, std::span<const int64_t> shape) {
  const int bits = safetensors_bits(dtype);
  if (bits == 0) throw InputError("unknown dtype {}", shown(std::string(dtype)));
  // In the order of the reference reader: a zero does not excuse an overflow before it.
  uint64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0) throw InputError("negative size {} in shape", size);
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(size), &product)) {
      throw InputError("number of elements overflows 64 bits");
    }
  }
  if (__builtin_mul_overflow(product, static_cast<uint64_t>(bits), &product)) {
    throw InputError("number of bits overflows 64 bits");
  }
  if (product % 8 != 0) throw InputError("{} bits of dtype {} do not end on a byte", product, dtype);
  return product / 8;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  const uint64_t length = header_length(file, file.size(), where);
  return parse_header({reinterpret_cast<const char*>(file.data()) + kLengthBytes, length}, file.size(),
                      where);
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  return SafetensorsFile(std::make_shared<const Contents>(path));
}

const std::filesystem::path& SafetensorsFile::path() const {
  return contents_->file.path();
}

const std::map<std::string, SafetensorsEntry>& SafetensorsFile::entries() const {
  return contents_->header.entries;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return contents_->header.metadata;
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto at = entries().find(name);
  if (at == entries().end()) throw InputError("{}: no tensor {}", path().string(), shown(name));
  return at->second;
}

void SafetensorsFile::read(const std::string& name, uint64_t offset, std::span<std::byte> into) const {
  const SafetensorsEntry& at = entry(name);
  if (offset > at.end - at.begin || into.size() > at.end - at.begin - offset)
    throw std::out_of_range("SafetensorsFile::read: beyond the tensor");
  contents_->file.read(contents_->header.data_begin + at.begin + offset, into);
}

std::vector<std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& at = entry(name);
  std::vector<std::byte> bytes(at.end - at.begin);
  read(name, 0, bytes);
  return bytes;
}

void StoredTensor::read(uint64_t offset, std::span<std::byte> into) const {
  if (pieces.empty()) return file.read(name, entry().begin - file.entry(name).begin + offset, into);
  for (const StoredTensor& piece : pieces) {
    const uint64_t size = piece.entry().end - piece.entry().begin;
    if (offset >= size) {
      offset -= size;
      continue;
    }
    const uint64_t count = std::min<uint64_t>(size - offset, into.size());
    piece.read(offset, into.first(count));
    into = into.subspan(count);
    offset = 0;
    if (into.empty()) return;
  }
}

}  // namespace streambp
