// `streambp-verify gradcheck`: the reference's own judge, six-point differences on every operation and on
// small models.
#pragma once

#include <cstdint>

namespace streambp::verify {

/// Prints a row (or, with json, an object) for each check. Returns 0 if all pass, else 1.
int run_gradcheck(uint64_t seed, bool json);

}  // namespace streambp::verify
