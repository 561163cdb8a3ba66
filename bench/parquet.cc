#include "bench/parquet.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace streambp::bench {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

/// Of the format (parquet.thrift): what its enumerations call these.
enum ColumnType { kBoolean = 0, kInt64 = 2, kDouble = 5, kByteArray = 6 };
constexpr int kOptional = 1, kUtf8 = 0, kPlain = 0, kRunLengths = 3;
constexpr const char* kMagic = "PAR1";

/// A structure in Thrift's compact protocol: fields by ascending number.
class Thrift {
 public:
  void number(int field, int64_t value, bool is_wide = false) {
    head(field, is_wide ? 6 : 5);
    zigzag(value);
  }
  void text(int field, const std::string& value) {
    head(field, 8);
    bare(value);
  }
  void structure(int field, const Thrift& value) {
    head(field, 12);
    out_ += value.bytes();
  }
  void structures(int field, const std::vector<Thrift>& values) {
    list(field, 12, values.size());
    for (const Thrift& value : values) out_ += value.bytes();
  }
  void numbers(int field, const std::vector<int>& values) {
    list(field, 5, values.size());
    for (const int value : values) zigzag(value);
  }
  void texts(int field, const std::vector<std::string>& values) {
    list(field, 8, values.size());
    for (const std::string& value : values) bare(value);
  }
  /// With the mark of its end.
  std::string bytes() const { return out_ + '\0'; }

  static std::string varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    return out + static_cast<char>(value);
  }

 private:
  void head(int field, int type) {
    out_ += static_cast<char>((field - last_) << 4 | type);
    last_ = field;
  }
  void list(int field, int type, size_t size) {
    head(field, 9);
    out_ += static_cast<char>(std::min<size_t>(size, 15) << 4 | static_cast<size_t>(type));
    if (size >= 15) out_ += varint(size);
  }
  void zigzag(int64_t value) {
    out_ += varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
  }
  void bare(const std::string& value) { out_ += varint(value.size()) + value; }

  std::string out_;
  int last_ = 0;
};

template <typename Number>
void append(std::string& out, Number value) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &value, sizeof(Number));
  out.append(bytes, sizeof(Number));
}

bool fits_int64(const json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() ||
         value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
}

ColumnType type_of(const std::vector<json>& values) {
  bool booleans = true, integers = true, numbers = true, some = false;
  for (const json& value : values) {
    if (value.is_null()) continue;
    some = true;
    booleans = booleans && value.is_boolean();
    integers = integers && fits_int64(value);
    numbers = numbers && (fits_int64(value) || value.is_number_float());
  }
  if (!some) return kByteArray;
  if (booleans) return kBoolean;
  return integers ? kInt64 : numbers ? kDouble : kByteArray;
}

/// Which rows have a value, in runs.
std::string presence(const std::vector<json>& values) {
  std::string runs;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin;
    while (end < values.size() && values[end].is_null() == values[begin].is_null()) ++end;
    runs += Thrift::varint((end - begin) << 1) + (values[begin].is_null() ? '\0' : '\1');
    begin = end;
  }
  std::string out;
  append(out, static_cast<uint32_t>(runs.size()));
  return out + runs;
}

std::string plain_values(const std::vector<json>& values, ColumnType type) {
  std::string out;
  size_t count = 0;
  for (const json& value : values) {
    if (value.is_null()) continue;
    switch (type) {
      case kBoolean:
        if (count % 8 == 0) out += '\0';
        out.back() = static_cast<char>(out.back() | value.get<bool>() << count % 8);
        break;
      case kInt64:
        append(out, value.get<int64_t>());
        break;
      case kDouble:
        append(out, value.get<double>());
        break;
      case kByteArray: {
        const auto& text = value.get_ref<const std::string&>();
        append(out, static_cast<uint32_t>(text.size()));
        out += text;
      }
    }
    ++count;
  }
  return out;
}

/// A page with its head.
std::string page(const std::vector<json>& values, ColumnType type) {
  const std::string data = presence(values) + plain_values(values, type);
  Thrift of_data, head;
  of_data.number(1, static_cast<int64_t>(values.size()));
  of_data.number(2, kPlain);
  of_data.number(3, kRunLengths);
  of_data.number(4, kRunLengths);
  head.number(1, 0);  // a page of data
  head.number(2, static_cast<int64_t>(data.size()));
  head.number(3, static_cast<int64_t>(data.size()));
  head.structure(5, of_data);
  return head.bytes() + data;
}

Thrift schema_of(const ParquetColumn& column, ColumnType type) {
  Thrift element;
  element.number(1, type);
  element.number(3, kOptional);
  element.text(4, column.name);
  if (type == kByteArray) element.number(6, kUtf8);
  return element;
}

Thrift chunk_of(const ParquetColumn& column, ColumnType type, size_t begin, size_t size) {
  Thrift data, chunk;
  data.number(1, type);
  data.numbers(2, {kPlain, kRunLengths});
  data.texts(3, {column.name});
  data.number(4, 0);  // not compressed
  data.number(5, static_cast<int64_t>(column.values.size()), true);
  data.number(6, static_cast<int64_t>(size), true);
  data.number(7, static_cast<int64_t>(size), true);
  data.number(9, static_cast<int64_t>(begin), true);
  chunk.number(2, static_cast<int64_t>(begin), true);
  chunk.structure(3, data);
  return chunk;
}

}  // namespace

bool is_text(const std::vector<json>& values) {
  return type_of(values) == kByteArray;
}

std::string parquet_file(const std::vector<ParquetColumn>& columns) {
  std::string file = kMagic;
  const auto rows = static_cast<int64_t>(columns.empty() ? 0 : columns.front().values.size());
  Thrift root;
  root.text(4, "records");
  root.number(5, static_cast<int64_t>(columns.size()));
  std::vector<Thrift> schema{root}, chunks;
  for (const ParquetColumn& column : columns) {
    const ColumnType type = type_of(column.values);
    const std::string data = page(column.values, type);
    schema.push_back(schema_of(column, type));
    chunks.push_back(chunk_of(column, type, file.size(), data.size()));
    file += data;
  }
  Thrift group, footer;
  group.structures(1, chunks);
  group.number(2, static_cast<int64_t>(file.size()) - 4, true);
  group.number(3, rows, true);
  footer.number(1, 1);
  footer.structures(2, schema);
  footer.number(3, rows, true);
  footer.structures(4, {group});
  footer.text(6, "streambp-bench");
  const std::string bytes = footer.bytes();
  file += bytes;
  append(file, static_cast<uint32_t>(bytes.size()));
  return file + kMagic;
}

}  // namespace streambp::bench
