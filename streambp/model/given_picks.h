// Rows that are given instead of picked: what attention has seen where the tokens were sampled.
#pragma once

#include <memory>

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"
#include "streambp/ops/rows/row_picks.h"

namespace streambp {

/// What indexers pick in a pass over `batch`; null where no layer has one. With Batch::indexer_indices each
/// token sees these rows and no others, and indexers run for the tokens alone that have none and could see
/// more than index_topk. No gradient goes through them, as none goes through what an indexer picks itself.
/// Throws InputError that names where they are from, row, column and layer: for a model without indexers,
/// another number of layers, more than index_topk of a token, one that is ahead of it, that it has twice, and
/// one of padding or of another document.
std::shared_ptr<RowPicks> picks_of(const Config& config, const Batch& batch, c10::Device device);

/// Throws what picks_of does, and keeps nothing.
void check_given_picks(const Config& config, const Batch& batch);

}  // namespace streambp
