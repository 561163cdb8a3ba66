#include "streambp/memory/shortage.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

namespace streambp {
namespace {

/// "20.50 MiB" at the beginning of `text`, in bytes.
std::optional<int64_t> leading_bytes(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0.0)) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits{
      {{"bytes", 1.0}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}}};
  for (const auto& [unit, bytes] : kUnits) {
    if (text.starts_with(unit) && number * bytes < 0x1p62) return std::llround(number * bytes);
  }
  return std::nullopt;
}

/// The bytes that follow `words` in `text`.
std::optional<int64_t> bytes_after(std::string_view text, std::string_view words) {
  const size_t found = text.find(words);
  return found == text.npos ? std::nullopt : leading_bytes(text.substr(found + words.size()));
}

/// The bytes before `words`: two words, a number and its unit.
std::optional<int64_t> bytes_before(std::string_view text, std::string_view words) {
  const size_t end = text.find(words);
  if (end == text.npos) return std::nullopt;
  const size_t unit = text.rfind(' ', end - std::min<size_t>(end, 1));
  const size_t number = unit == text.npos || unit == 0 ? text.npos : text.rfind(' ', unit - 1);
  return leading_bytes(text.substr(number == text.npos ? 0 : number + 1));
}

}  // namespace

MemoryShortage shortage_of(const std::exception& error) {
  if (const auto* const failed = dynamic_cast<const AllocationFailed*>(&error)) return failed->shortage();
  const std::string_view text = error.what();
  MemoryShortage shortage;
  shortage.asked = bytes_after(text, "ried to allocate ");
  const auto capacity = bytes_after(text, "total capacity of "), free = bytes_after(text, " of which ");
  const auto allowed = bytes_before(text, " allowed; ");
  if (allowed) {
    shortage.limit = allowed;
    shortage.alive = bytes_after(text, "Of the allocated memory ");
  } else if (capacity) {
    shortage.limit = capacity;
    if (free) shortage.alive = std::max<int64_t>(0, *capacity - *free);
  }
  return shortage;
}

}  // namespace streambp
