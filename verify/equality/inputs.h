// Inputs of every objective for the equality sweep: awkward rows, written and read as a padded file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "streambp/objective/objective.h"

namespace streambp::verify {

/// How rows are padded: none makes rows of equal length. Completions are padded on the right whatever the
/// choice (TRL's layout), and their prompts on the left. Documents are the rows one after another in a single
/// one, without padding.
enum class Padding { kLeft, kRight, kNone, kDocuments };

/// Tokens of a row's prompt, which is not scored, and of its completion.
struct RowLengths {
  int64_t prompt = 1;
  int64_t completion = 0;

  int64_t tokens() const { return prompt + completion; }
};

/// Four rows of prompts and completions of unequal lengths, the longest of `length` tokens, at least 4: one
/// completion of a single token, and where the objective may have it an empty one. Without padding all are
/// equal.
std::vector<RowLengths> row_lengths(const ObjectiveKind& kind, Padding padding, int64_t length);

/// Whether documents may stand for the rows that an objective of this layout scores.
bool takes_documents(Layout layout);

/// A batch of an objective's layout, read from a padded file by read_objective_batch. Left and right padding
/// and documents hold the same rows. Log-probabilities of old policy and reference, and old values, are noise
/// around 0: see around_policy. GRPO without padding has no old log-probabilities.
Batch objective_batch(const ObjectiveKind& kind, bool with_reference, Padding padding,
                      const std::vector<RowLengths>& rows, int64_t vocab_size, uint64_t seed);

/// Moves those of `batch` from around 0 to around what the model gives for it (`policy`, of evaluate()), so
/// that some ratios and values are clipped and others are not.
void move_to_policy(Batch& batch, const at::Tensor& log_probabilities, const at::Tensor& values);

}  // namespace streambp::verify
