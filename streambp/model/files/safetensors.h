// The safetensors format: its header checked as strictly as the reference reader does
// (huggingface/safetensors, safetensors/src/tensor.rs), its tensors read where they are asked for, and
// written by temporary file and rename. Knows bytes, not tensors: no torch header here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace streambp {

/// Longest header read or written (MAX_HEADER_SIZE of the reference reader).
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

/// One tensor of a file: its dtype as the format spells it ("F64", "F32", "BF16", "F16", "I64", ...), its
/// shape, and where its bytes lie, counted from the end of the header.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// What the header of a safetensors file says. The data section starts at byte `data_begin` of the file and
/// ends with the file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;
};

/// Validates the bytes of a whole file; `where` names the source in errors.
/// Throws InputError, naming the source and the rule, for every breach that the reference reader refuses:
/// fewer than 8 bytes; header length above 100,000,000 or beyond the file; header not UTF-8, not JSON, not an
/// object, with duplicate keys, unknown dtypes, negative or non-integer numbers, or metadata that is not
/// string to string; offsets that leave a hole, overlap or run backwards; offsets that disagree with shape x
/// dtype size; products that overflow 64 bits; sub-byte tensors that don't end on a byte; bytes missing or
/// left over at the end. As there, whitespace around the header's object, unknown keys in a tensor's entry,
/// tensors without elements and tensors of rank 0 are allowed.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// A validated safetensors file that is open for reading. Copies share it; references stay valid while any
/// copy lives. It is not mapped: a file that is truncated in the meantime gives an error, where an access to
/// a map would end the process.
class SafetensorsFile {
 public:
  /// Opens `path` and validates it as parse_safetensors does.
  /// Throws InputError naming the file if it is missing, can't be read, is not a regular file, or breaks a
  /// rule of the format.
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::map<std::string, SafetensorsEntry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;

  /// The entry of tensor `name`; throws InputError naming the file if there is none.
  const SafetensorsEntry& entry(const std::string& name) const;
  /// Reads bytes of tensor `name`, which are little-endian and row-major, from its byte `offset` on, as many
  /// as `into` holds. Throws InputError if there is none, or where the file no longer has them;
  /// std::out_of_range for bytes beyond the tensor's.
  void read(const std::string& name, uint64_t offset, std::span<std::byte> into) const;
  /// All of them.
  std::vector<std::byte> bytes(const std::string& name) const;

 private:
  struct Contents;
  explicit SafetensorsFile(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

/// A tensor and the file that holds it, under the name it has there; or neighbouring rows of that tensor.
struct StoredTensor {
  SafetensorsFile file;
  std::string name;
  /// Shape and bytes of the rows that are meant; nothing: the whole tensor.
  std::optional<SafetensorsEntry> part = std::nullopt;
  /// Tensors whose bytes are those that are meant, one after another, of which `part` is the shape of all.
  /// Empty: they are of one tensor.
  std::vector<StoredTensor> pieces = {};

  const SafetensorsEntry& entry() const { return part ? *part : file.entry(name); }
  /// From byte `offset` of what is meant on.
  void read(uint64_t offset, std::span<std::byte> into) const;
};

/// Bits of one element of `dtype`, 0 for a dtype the format does not know.
int safetensors_bits(std::string_view dtype);

/// Bytes of a tensor. Throws InputError for an unknown dtype, a negative size, a product of sizes or bits
/// that overflows 64 bits, and a sub-byte tensor that does not end on a byte.
uint64_t safetensors_size(std::string_view dtype, std::span<const int64_t> shape);

/// A tensor to be written: `bytes` must hold product(shape) elements of `dtype`.
struct SafetensorsView {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes `tensors` (sorted by dtype size, largest first, then name; header padded to 8 bytes) to a temporary
/// file next to `path`, flushes it to disk and renames it, so that `path` is never seen half written; the
/// file that it replaces may still be open. Throws InputError if it can't be written (no temporary file is
/// left), or if a tensor has an unknown dtype, a negative size, a number of bytes that is not its shape's, or
/// a name that is taken, reserved (`__metadata__`) or not UTF-8.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsView> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace streambp
