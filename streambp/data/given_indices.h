// What whoever sampled the tokens reports of them, as a file or a trainer's batch holds it: experts, and rows
// that indexers have picked.
#pragma once

#include <string>

#include "streambp/model/batch.h"

namespace streambp {

inline constexpr const char* kRouterIndices = "router_indices";
inline constexpr const char* kIndexerIndices = "indexer_indices";

/// The indices `given` [B, T, L, k], called `name`, of the rows that `batch` was read from, those of padding
/// left out: [N, L, k] int32. Throws InputError for another shape, and for what are no integers; `prefix`
/// stands before the name, here and in Batch::indices_source.
at::Tensor read_given_indices(const at::Tensor& given, const std::string& prefix, const char* name,
                              Batch& batch);

}  // namespace streambp
