// Values of records that may be absent.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

namespace streambp::bench {

template <typename T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

/// Null for 0 and below.
inline nlohmann::json positive_or_null(int64_t value) {
  return value > 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace streambp::bench
