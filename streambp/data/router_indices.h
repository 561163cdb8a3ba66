// Experts that whoever sampled the tokens reports of them, as a file or a trainer's batch holds them.
#pragma once

#include <string>

#include "streambp/model/batch.h"

namespace streambp {

inline constexpr const char* kRouterIndices = "router_indices";

/// Puts the experts `given` [B, T, L, k] of the rows that `batch` was read from into it, those of padding
/// left out. Throws InputError for another shape, and for what are no integers; `prefix` stands before the
/// name.
void read_router_indices(const at::Tensor& given, const std::string& prefix, Batch& batch);

}  // namespace streambp
