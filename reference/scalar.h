// Of what numbers the reference is made. Its sources are written once and compiled twice: in doubles, which
// is the namespace streambp::reference, and in extended precision with complex steps, which is a namespace of
// its own that check/ judges the first by.
#pragma once

#include <cmath>

#ifdef STREAMBP_REFERENCE_IN_EXTENDED_PRECISION

#include "reference/complex_step.h"

#define STREAMBP_REFERENCE reference_in_extended_precision

namespace streambp::STREAMBP_REFERENCE {

using Number = long double;
using Scalar = reference::ComplexStep;

inline Number real_part(const Scalar& x) {
  return x.real();
}

namespace math {
using reference::abs;
using reference::cos;
using reference::cosh;
using reference::erf;
using reference::exp;
using reference::expm1;
using reference::isnan;
using reference::log;
using reference::log1p;
using reference::sin;
using reference::sqrt;
using reference::tanh;
}  // namespace math

}  // namespace streambp::STREAMBP_REFERENCE

#else

#define STREAMBP_REFERENCE reference

namespace streambp::STREAMBP_REFERENCE {

/// Of constants, and of what is held constant: a factor, an option, a weight of a token.
using Number = double;

/// Of what gradients go through: the entries of the matrices on a tape.
using Scalar = double;

/// What counts of a scalar where it is held constant: a complex step ends here.
inline Number real_part(Scalar x) {
  return x;
}

/// The functions of a scalar.
namespace math {
using std::abs;
using std::cos;
using std::cosh;
using std::erf;
using std::exp;
using std::expm1;
using std::isnan;
using std::log;
using std::log1p;
using std::sin;
using std::sqrt;
using std::tanh;
}  // namespace math

}  // namespace streambp::STREAMBP_REFERENCE

#endif
