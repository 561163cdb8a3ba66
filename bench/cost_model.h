// What a way of running back-propagation costs in time, estimated: for ranking, not for promises.
#pragma once

#include "bench/cell.h"

namespace streambp {

/// The time of `cell` on `bench`, with 1 for standard back-propagation of the same tokens:
///
///   (F + recomputed + 2000 * bytes) / F * (1 + 32 / chunk)
///
/// - F: forward and backward, 3 x the forward pass (bench/model_flops.h).
/// - recomputed: all but standard run the layers' forward pass again; streambp the key and value projections
///   once more, or with its chunks in forward order forward and backward for all tokens before a chunk; a
///   streamed head that has to know all log-probabilities first (DPO and others whose terms are not sums over
///   tokens) its logits once more.
///   Kept attention outputs save the forward attention of that, and inputs that were not kept cost their
///   layers' forward pass once more, without attention where its outputs are kept.
/// - bytes: what goes to the host's memory and comes back, at 2000 operations a byte (a GPU of 400 TFLOP/s
///   that reaches half of it, beside a link of 100 GB/s in both directions together). An assumption.
/// - 1 + 32 / chunk: products of few rows are slower. An assumption (6 % at 512 rows), of the size that the
///   sweeps on the CPU show.
double relative_cost(const Bench& bench, const Cell& cell);

}  // namespace streambp
