// The batch as a wrong engine sees it: other targets, padding among the tokens, other inputs of the
// objective; and where its tokens stand among each other.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

struct WrongBatch {
  Batch batch;
  at::Tensor hidden_key;  // [N] bool: padding that is a token of the batch, but that no query sees
};

/// `batch` with the mistakes of `settings` that are about targets and padding. `input_ids` [rows, columns]
/// says what stands under the padding (undefined: 0), `labels` [rows, columns] what a row's first token is
/// labelled (undefined: itself).
WrongBatch wrong_batch(const Batch& batch, const at::Tensor& input_ids, const at::Tensor& labels,
                       const WrongSettings& settings);

/// The advantages of `batch` [N], as `settings` has them.
at::Tensor wrong_advantages(const Batch& batch, const WrongSettings& settings);

/// Where each token of a batch stands, [N] int64 each.
struct TokenIndices {
  at::Tensor row, column;  // in the padded input
  at::Tensor sequence;     // its number: of the batch's sequences, or of rows where documents are ignored
  at::Tensor in_sequence;  // index in its sequence, from 0
};

TokenIndices token_indices(const Batch& batch, bool ignores_documents);

/// Columns of padding before each token's row begins, [N].
at::Tensor left_padding(const TokenIndices& indices);

/// The index in its own sequence at which each token's chunk begins, [N] int64: 0 where it began earlier. Of
/// cuts along sequences, columns and the stream.
at::Tensor chunk_starts(const TokenIndices& indices, const Cut& cut);

/// Where sequences begin, and chunks of them.
std::vector<int64_t> restarted(const std::vector<int64_t>& offsets, const TokenIndices& indices,
                               const Cut& cut);

/// Positions [N] of rows whose columns n ranks share, rank i chunks i and 2 n - 1 - i of 2 n: each counts on
/// from its first chunk to its second, and the next rank from there.
at::Tensor balanced_positions(const Batch& batch, int64_t ranks);

/// Whether a token stands before the first that is scored of its sequence, [N] bool: none where nothing is.
at::Tensor prompt_tokens(const Batch& batch);

/// The chunk that each of the scored tokens belongs to, [M] int64. `scored` [M] are indices of the stream.
at::Tensor chunk_numbers(const Batch& batch, const at::Tensor& scored, const Cut& cut);

/// What a scored token's term is multiplied by where means of chunks are averaged, [M]: M / (number of chunks
/// with a target x targets of its chunk).
at::Tensor normaliser_weights(const Batch& batch, const at::Tensor& scored, const Cut& cut);

}  // namespace streambp::verify
