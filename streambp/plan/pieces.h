// How long a dry run may be.
#pragma once

#include <cstdint>

namespace streambp::plan {

/// Layers times the chunks that each is run in, one by one: a dry run of more takes many minutes, and
/// StepRunner::count_flops refuses it with an InputError.
inline constexpr int64_t kMostPieces = int64_t{1} << 20;

}  // namespace streambp::plan
