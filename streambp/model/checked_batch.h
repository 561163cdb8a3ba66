// What a model can't run of a batch that is well formed in itself.
#pragma once

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"

namespace streambp {

/// Throws InputError for a sequence whose positions do not rise by 1, where blocks of rows have those of
/// their first rows: scores and what is given are of distances alone, wherever a sequence begins.
void require_plain_positions(const Config& config, const Batch& batch);

/// Throws what Model::prepare does of a batch, before ranks that run together begin: what one of them refuses
/// later the others wait for.
void check_batch(const Config& config, const Batch& batch);

}  // namespace streambp
