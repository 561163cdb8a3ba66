// What numbers are stored as and computed with.
#pragma once

#include <cstdint>

namespace streambp::cpu {

/// The upper half of a float.
struct Bfloat16 {
  uint16_t bits;
};

template <typename S>
struct WideOf {
  using Type = S;
};
template <>
struct WideOf<Bfloat16> {
  using Type = float;
};
/// What numbers stored as S are computed with.
template <typename S>
using Wide = typename WideOf<S>::Type;

}  // namespace streambp::cpu
