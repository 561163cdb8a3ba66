// Sizes as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace streambp {

/// 1234567890 as "1.23 GB": decimal units, three digits.
std::string format_bytes(int64_t bytes);

}  // namespace streambp
