#include "streambp/runtime/bytes.h"

#include <cmath>
#include <fmt/format.h>
#include <iterator>

namespace streambp {

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value,
                     std::abs(value) >= 99.95   ? 0
                     : std::abs(value) >= 9.995 ? 1
                                                : 2,
                     kUnits[unit]);
}

}  // namespace streambp
