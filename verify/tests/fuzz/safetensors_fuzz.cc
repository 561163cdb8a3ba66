// Any bytes are either refused with an InputError or give tensors that lie inside the file and cover its data
// exactly.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "streambp/error.h"
#include "streambp/model/files/safetensors.h"
#include "verify/tests/fuzz/fuzz.h"

namespace {

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(std::span<const std::byte> file) {
  try {
    const streambp::SafetensorsHeader header = streambp::parse_safetensors(file, "fuzz");
    ++accepted_count;
    require(header.data_begin >= 8 && header.data_begin <= file.size());
    const uint64_t data = file.size() - header.data_begin;
    uint64_t total = 0;
    for (const auto& [name, entry] : header.entries) {
      require(entry.begin <= entry.end && entry.end <= data);
      require(entry.end - entry.begin == streambp::safetensors_size(entry.dtype, entry.shape));
      total += entry.end - entry.begin;
    }
    require(total == data);
  } catch (const streambp::InputError&) {
  }
}

std::string with_length(const std::string& header, std::size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check(std::as_bytes(std::span(data, size)));
  // A mutation seldom keeps the header's length right, so the bytes are tried as a header of the right length
  // as well, split at the last brace.
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::size_t begin = std::min<std::size_t>(8, size);
  const std::size_t brace = text.rfind('}');
  const std::size_t end = brace == std::string::npos || brace < begin ? size : brace + 1;
  const std::string file = with_length(text.substr(begin, end - begin), size - end);
  check(std::as_bytes(std::span(file)));
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const std::string a = R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";
  const std::string b = R"("b\n":{"dtype":"BF16","shape":[],"data_offsets":[24,26]})";
  const std::string c = R"("c":{"dtype":"F4","shape":[4,0],"data_offsets":[26,26]})";
  return {"",
          with_length("{}", 0),
          with_length(" \n{}  ", 0),
          with_length("{" + a + "}", 24),
          with_length("{" + b + "," + c + "," + a + "}", 26),
          with_length(R"({"__metadata__":{"format":"pt"},)" + a + "," + b + "}", 26),
          with_length("{" + a + "}", 23),
          with_length("{" + b + "}", 26),
          with_length(R"({"a":{"dtype":"I64","shape":[2,9223372036854775807],"data_offsets":[0,16]}})", 16)};
}

std::vector<std::string> dictionary() {
  return {"\"__metadata__\"",
          "\"dtype\"",
          "\"shape\"",
          "\"data_offsets\"",
          "\"F64\"",
          "\"F6_E2M3\"",
          "[0,0]",
          "[0,24]",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "null",
          "-1",
          "1e9",
          "0.5",
          "18446744073709551615",
          "9223372036854775808",
          "\\u0000",
          "\xEF\xBB\xBF"};
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
