// The hash that keys of records are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <span>
#include <string>
#include <string_view>

namespace streambp {

/// 64-bit FNV-1a (Fowler, Noll, Vo) of all bytes added: the same in every process and on every machine.
class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte one : bytes) {
      hash_ ^= static_cast<uint64_t>(one);
      hash_ *= 0x100000001b3;
    }
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  /// 16 hexadecimal digits.
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace streambp
