// How much arithmetic one step of training needs, whatever the method.
#pragma once

#include <cstdint>
#include <vector>

#include "streambp/model/model.h"

namespace streambp::plan {

/// Floating-point operations of one forward and backward pass over sequences of the given lengths, a
/// multiplication and an addition counted as two and recomputation not at all (the model FLOPs of Chowdhery
/// et al., 2022, PaLM, appendix B). Where every weight is trained,
///     6 P N + sum over layers of 12 H E sum over sequences of the pairs of tokens,
/// P the weights of all linear maps with the LM head (tied or not; the embedding is a look-up; a value head
/// is not counted) that a token meets: of a mixture its router and the chosen experts; N all tokens, H query
/// heads of size E, and t (t + 1) / 2 pairs in a sequence of t tokens, or w (w + 1) / 2 + (t - w) w under a
/// window of w < t. The backward pass of a product is two products of its size; of the causal scores and
/// their product with the values (2 H E operations each for a pair of tokens) only the pairs that exist
/// count. A head that skips unscored tokens does a little less.
///
/// A frozen weight (under LoRA the whole base) has no gradient: 4 for its 6; an adapter's weights are trained
/// ones. A layer below all that is trained has no backward pass: a third of its terms.
///
/// Of the pairs those that are picked count where indexers pick, and the indexers' own scores and maps,
/// forward alone.
double model_flops(const Model& model, const std::vector<int64_t>& lengths);

/// Operations of a layer's indexer over sequences of the given lengths; 0 without one, or where nothing is
/// picked.
double indexer_flops(const DecoderLayer::Weights& weights, const std::vector<int64_t>& lengths);

/// Tokens of each sequence of a batch whose sequences begin at `offsets`, its end last.
std::vector<int64_t> sequence_lengths(const std::vector<int64_t>& offsets);

/// Pairs of a query and a key that it sees, itself included, in sequences of the given lengths under a window
/// (0: none).
double visible_pairs(const std::vector<int64_t>& lengths, int64_t window);

/// The same of a query and the blocks of `rate` rows that it sees, `most` of them at most (0: all).
double block_pairs(const std::vector<int64_t>& lengths, int64_t rate, int64_t most);

}  // namespace streambp::plan
