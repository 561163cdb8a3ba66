#include "streambp/model/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "streambp/error.h"
#include "streambp/model/strict_json.h"

namespace streambp {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is used in place");

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

// A read-only private map of a whole file. The descriptor is not kept: the map outlives it.
class FileMap {
 public:
  explicit FileMap(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe must not wait for a writer before it is refused.
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status = {};
    if (file.get() < 0 || ::fstat(file.get(), &status) != 0) fail(path, "cannot be opened");
    if (!S_ISREG(status.st_mode)) throw InputError("{}: not a regular file", path.string());
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;  // an empty map is not allowed; the parser refuses the empty span
    void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address == MAP_FAILED) fail(path, "cannot be mapped");
    address_ = address;
  }
  ~FileMap() {
    if (address_ != nullptr) ::munmap(address_, size_);
  }
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), size_}; }

 private:
  [[noreturn]] static void fail(const std::filesystem::path& path, const char* what) {
    throw InputError("{}: {}: {}", path.string(), what, std::generic_category().message(errno));
  }

  void* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

struct SafetensorsFile::Contents {
  explicit Contents(const std::filesystem::path& file_path)
      : path(file_path), map(file_path), header(parse_safetensors(map.bytes(), file_path.string())) {}

  std::filesystem::path path;
  FileMap map;
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
  if (file.size() < kLengthBytes) {
    throw InputError("{}: {} bytes, expected at least the 8 of a safetensors header length", where,
                     file.size());
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    throw InputError("{}: header length {}, expected at most {}", where, length, kMaxSafetensorsHeader);
  }
  if (length > file.size() - kLengthBytes) {
    throw InputError("{}: header length {}, but only {} bytes follow", where, length,
                     file.size() - kLengthBytes);
  }
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
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
  check_cover(header.entries, file.size() - header.data_begin, where);
  return header;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  return SafetensorsFile(std::make_shared<const Contents>(path));
}

const std::filesystem::path& SafetensorsFile::path() const {
  return contents_->path;
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

std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& at = entry(name);
  return contents_->map.bytes().subspan(contents_->header.data_begin + at.begin, at.end - at.begin);
}

}  // namespace streambp
