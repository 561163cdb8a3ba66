// A batch is a packed stream: the real tokens of all sequences one after another, no padding, no mask.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace streambp {

/// The target of a token whose prediction is not scored.
inline constexpr int64_t kNoTarget = -100;

/// The most tokens that a batch may have, padding included: rows are counted in 32 bits by the BLAS libraries
/// behind the matrix products, and streambp-verify long checks products of as many.
inline constexpr int64_t kMaxTokens = int64_t{1} << 26;

/// N tokens of S sequences: rows of the padded input, or the documents of packed rows. Tensors live on the
/// CPU until a model takes the batch.
struct Batch {
  at::Tensor tokens;     // [N] int64
  at::Tensor positions;  // [N] int64, for the rotary embedding
  at::Tensor targets;    // [N] int64: the token that the logits at this index are scored on, or kNoTarget
  std::vector<int64_t>
      offsets;  // [S + 1] ascending, 0 first, N last: sequence i is tokens [offsets[i], offsets[i+1])
  /// [N] bool: tokens that a value head scores; undefined: none.
  at::Tensor value_mask;
  /// The experts of each token, as whoever sampled it reports them (replayed routing): [N, L, k] int32 for
  /// the L layers that have experts, or all layers of the model, whose others are not read. -1 in all k
  /// places: the router chooses. Undefined: routers choose everywhere.
  at::Tensor router_indices;
  /// What each token's attention sees where indexers pick it, as whoever sampled the token reports it:
  /// [N, L, k] int32 columns of input_ids, or of a family whose indexers pick blocks numbers of those of the
  /// token's sequence, for the L layers that have indexers of their own, or all layers of the model, whose
  /// others are not read. -1 stands for none, and in all k places: the indexer picks. Undefined: indexers
  /// pick everywhere.
  at::Tensor indexer_indices;
  std::string indices_source;  // what messages about both begin with
  /// What an objective needs in addition to the tokens, on the CPU: per token [N] float64, at the token whose
  /// logits it belongs to and 0 elsewhere (advantages, old_log_probabilities, ...), and per sequence [S]
  /// float64.
  std::map<std::string, at::Tensor> token_inputs;
  std::map<std::string, at::Tensor> sequence_inputs;
  /// Numbers of the whole batch that stand for options of the objective where these are not given, by the
  /// option's name (num_items_in_batch).
  std::map<std::string, double> scalar_inputs;
  /// 1 + the greatest position of the padded input, padding included, and of the whole batch that this one is
  /// a part of; 0: of its own tokens. Rotary tables may depend on it.
  int64_t rope_length = 0;
  at::Tensor
      padded_indices;  // [N] int64: row * columns + column in the padded input this batch was read from
  int64_t padded_rows = 0;
  int64_t padded_columns = 0;
  /// Whether rows hold documents of their own: a sequence is then one of these.
  bool packed = false;
  /// What the author of the padded input should know: targets at a document's last token, which the next
  /// document's first label gave; and labels that were dropped (FirstLabels).
  int64_t targets_across_documents = 0;
  int64_t first_labels_ignored = 0;

  int64_t size() const { return offsets.back(); }
};

/// What to do with labels that padding would predict, as in rows whose labels are their input_ids, padding
/// included: kIgnore drops that of a row's first real token, with padding on its left, kIgnoreAll those of
/// padding as well. Transformers trains on all of them.
enum class FirstLabels { kRefuse, kIgnore, kIgnoreAll };

/// Drops the padding of input_ids [B, T].
/// attention_mask [B, T] (optional): 1 real, 0 padding, on the left, the right or both sides of a row.
/// position_ids [B, T] or [1, T] (optional): default 0, 1, ... from the row's first real token. Without an
/// attention_mask a document begins wherever a row's next position is not this one's plus 1, as transformers
/// has it for passes without a cache (masking_utils.py, find_packed_sequence_indices): each document is a
/// sequence of its own. labels [B, T] (optional): the logits at column t are scored on labels[t + 1], -100
/// ignored, be it in another document; default: every real token but a row's and a document's first.
/// Throws InputError, naming tensor, row and column: shapes that differ, a token id outside the vocabulary, a
/// label outside it (other than -100), a mask with holes or values other than 0 and 1, a negative position of
/// a real token, a label that would be predicted from padding, more than kMaxTokens tokens.
Batch pack(const at::Tensor& input_ids, const at::Tensor& attention_mask, const at::Tensor& labels,
           const at::Tensor& position_ids, int64_t vocab_size,
           FirstLabels first_labels = FirstLabels::kRefuse);

/// Sequences of the given lengths with seeded random tokens, every token but a sequence's first scored.
/// Throws InputError for a length below 1 and for more than kMaxTokens tokens.
Batch random_batch(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed);

/// Batch::rope_length, or what it is of the batch itself.
int64_t rope_length(const Batch& batch);

/// The given sequences of a batch, in the given order, with all that belongs to them.
Batch select_sequences(const Batch& batch, const std::vector<int64_t>& sequences);

/// The same tokens, whose experts routers choose and whose rows indexers pick: for a reference or a teacher,
/// which sampled nothing.
Batch without_given_indices(const Batch& batch);

/// A batch cut into at most `parts` micro-batches of neighbouring sequences, documents of a row included;
/// with `pairs`, sequences i and i + S/2 stay together. An objective made on each with the Counts of the
/// whole batch gives, summed, the gradient of the whole batch.
std::vector<Batch> micro_batches(const Batch& batch, int64_t parts, bool pairs);

/// Puts per-token values [N, ...] back into a padded [B, T, ...] tensor, 0 where there is padding.
at::Tensor unpack(const Batch& batch, const at::Tensor& values);

}  // namespace streambp
