// The checks at the head of every operation: what does not fit is refused with a message that says what was
// expected.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// "3 x 4"
inline std::string shape_text(Index rows, Index cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}
inline std::string shape_text(const Matrix& x) {
  return shape_text(x.rows(), x.cols());
}

/// Throws std::invalid_argument "<where>: <message>" unless `holds`.
inline void require(bool holds, const std::string& where, const std::string& message) {
  if (!holds) throw std::invalid_argument(where + ": " + message);
}

/// Throws std::invalid_argument unless `x`, called `name` in the message, is rows x cols.
inline void require_shape(const std::string& where, const std::string& name, const Matrix& x, Index rows,
                          Index cols) {
  require(x.rows() == rows && x.cols() == cols, where,
          "expected " + name + " to be " + shape_text(rows, cols) + ", got " + shape_text(x));
}

/// That rows or columns are there, from 0 to before `end`.
inline void require_indices(const char* op, const std::vector<int>& indices, Index end) {
  for (int i : indices) {
    require(i >= 0 && i < end, op,
            "expected indices from 0 to " + std::to_string(end - 1) + ", got " + std::to_string(i));
  }
}

}  // namespace streambp::STREAMBP_REFERENCE
