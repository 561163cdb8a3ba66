// What numbers are stored as and computed with.
#pragma once

#include <cstdint>
#include <type_traits>

namespace streambp::cpu {

/// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

/// What numbers stored as S are computed with.
template <typename S>
using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;

}  // namespace streambp::cpu
