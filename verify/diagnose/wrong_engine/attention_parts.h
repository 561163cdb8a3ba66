// Parts of attention as mistakes have them: sums over heads and shares of sinks whose gradients are wrong,
// queries that see nothing.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "verify/diagnose/wrong_engine/wrong_batch.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// Whether settings ask for an attention that is written out.
bool changes_attention(const WrongSettings& settings);

/// Keys or values [heads, n, E], each head for the `group` query heads that share it, whose gradients are
/// added up as `sum` says.
at::Tensor repeated_for_queries(const at::Tensor& by_head, int64_t group, GroupSum sum);

/// The probabilities of keys, by scores whose last entry is a sink: no gradient flows to the keys' scores
/// through what the sink leaves to all of them.
at::Tensor with_constant_share(const at::Tensor& scores);

/// The weights that queries give keys by scores [heads, n, n], where each block of keys,
/// by their `column` [n], has a softmax of its own, and what it gives is merged as the settings say. Throws
/// InputError where scores have a sink besides.
at::Tensor merged_blocks(const at::Tensor& scores, const at::Tensor& seen, const at::Tensor& column,
                         const WrongSettings& settings);

/// What heads give [n, heads, E], of each row [tokens, heads, E] read as if it were [heads, tokens, E].
/// `rows`: where they begin, and the end.
at::Tensor heads_not_transposed(const at::Tensor& output, const std::vector<int64_t>& rows);

/// Which keys [n, n] a query sees in a layer with such a window (0: none), by what the settings do to it.
at::Tensor keys_seen(const WrongSettings& settings, const TokenIndices& indices, const Batch& batch,
                     int64_t window);

/// The probabilities that queries without a key of their own give their `row`, [n, n] bool.
at::Tensor of_blind_queries(BlindQueries blind, const at::Tensor& row, const at::Tensor& q,
                            const at::Tensor& k, double scale);

}  // namespace streambp::verify
