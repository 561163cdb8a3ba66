// The padded tensors that an objective's batch is read from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "streambp/model/batch.h"
#include "streambp/objective/objective.h"

namespace streambp {

/// The tensor of a file, and the option of an objective, that a sum over tokens is divided by.
inline constexpr const char* kNumItemsInBatch = "num_items_in_batch";

/// The tensors that a batch for `kind` may have, by the names that transformers and TRL give them; whatever
/// else is there is refused.
std::vector<std::string> known_tensors(const ObjectiveKind& kind);

/// Throws InputError for one of `names` that is not known_tensors' of `kind`; `prefix` stands before it in
/// the message.
void refuse_unknown(const ObjectiveKind& kind, const std::vector<std::string>& names,
                    const std::string& prefix = "");

/// How position_ids tell the documents of a row apart, by transformers' attention implementations. kSdpa
/// (eager and flex attention alike): in every row, where there is no attention_mask (masking_utils.py).
/// kFlash: in a batch of one row without padding, with a mask of ones as without a mask; else a row is one
/// sequence (modeling_flash_attention_utils.py, _is_packed_sequence).
enum class Documents { kSdpa, kFlash };

/// Tensors on the CPU before they become a packed batch. B rows, T columns.
class PaddedTensors {
 public:
  /// `tensors` by the names of known_tensors; `prefix` stands before names in messages. Throws InputError for
  /// input_ids that are no integers [B, T], and for positions that flash attention cuts elsewhere than
  /// pack(). Where TRL's collators write prompts and completions, chosen and rejected rows, or rows and those
  /// of a KL estimate, apart, they are put together here.
  PaddedTensors(std::map<std::string, at::Tensor> tensors, const std::string& prefix,
                const ObjectiveKind& kind, FirstLabels first_labels, Documents documents = Documents::kSdpa);

  int64_t rows() const { return input_ids_.size(0); }
  int64_t columns() const { return input_ids_.size(1); }
  const at::Tensor& input_ids() const { return input_ids_; }

  /// A tensor; throws InputError if there is none. An undefined one instead; whether there is one.
  at::Tensor tensor(const std::string& name) const;
  at::Tensor optional(const std::string& name) const;
  bool has(const std::string& name) const;

  /// The stream of all rows, or of the documents in them. Throws InputError as pack does, for rows of
  /// documents where the objective scores rows, unless a document stands for each (a single row of pairs, or
  /// of labelled completions), and for cu_seq_lens_q and its like where they contradict position_ids.
  Batch packed(const at::Tensor& labels, int64_t vocab_size) const;

  /// Integers `name` of two dimensions, in int64; numbers of a shape, in float64, finite where there is one
  /// for each row; a single finite number.
  at::Tensor integers(const std::string& name) const;
  at::Tensor numbers(const std::string& name, at::IntArrayRef shape) const;
  double scalar(const std::string& name) const;

  /// The columns w of `name` [B, w], a tensor over the last ones of T.
  int64_t width(const std::string& name) const;

  /// Zeros and ones `name` [B, width] over the last columns, as bool [B, T].
  at::Tensor mask(const std::string& name, int64_t width) const;

  /// Throws where one of `values` [B, T] or [B] is not finite.
  static void require_finite(const at::Tensor& values, const std::string& name);

  /// [B, w] put under the last w of T columns, 0 before them.
  at::Tensor last_columns(const at::Tensor& values) const;

  /// input_ids where `mask` [B, T] selects a token, else no target. Throws where it selects padding or,
  /// unless first labels are ignored, what padding would predict; the first column of all is predicted by
  /// nothing and dropped, as its label is elsewhere.
  at::Tensor labels(const at::Tensor& mask, const std::string& name) const;

  /// Entries [B, T] of tokens, at the column whose logits predict them.
  at::Tensor moved(const at::Tensor& of_tokens) const;

  /// Entries [B, T] of tokens on the packed stream, at the token that predicts them, [N].
  at::Tensor on_stream(const Batch& batch, const at::Tensor& of_tokens) const;

  /// Throws with what `name` does wrong where `flags` [B, T] ask for padding; they stand `moved_by` columns
  /// before what they are about.
  void require_real(const at::Tensor& flags, int64_t moved_by, const std::string& name,
                    const char* wrong) const;

 private:
  void join_prompts_and_completions();
  void join_pairs();
  void join_rows_and_estimates();
  void follow_flash_attention();
  void require_documents(const Batch& batch) const;

  std::map<std::string, at::Tensor> tensors_;
  std::string prefix_;
  const ObjectiveKind& kind_;
  FirstLabels first_labels_;
  at::Tensor input_ids_;
  at::Tensor attention_mask_;
  at::Tensor position_ids_;
};

}  // namespace streambp
