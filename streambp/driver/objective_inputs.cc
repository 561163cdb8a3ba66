#include "streambp/driver/objective_inputs.h"

#include <algorithm>
#include <cmath>

#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

/// A file's padded tensors on their way into a packed batch. Names are the file's, without the prefix.
class PaddedFile {
 public:
  PaddedFile(const SafetensorsFile& file, const std::string& prefix)
      : file_(file),
        prefix_(prefix),
        input_ids_(tensor("input_ids")),
        attention_mask_(optional("attention_mask")),
        position_ids_(optional("position_ids")) {
    // The masks below are laid over input_ids before pack() has seen it.
    if (input_ids_.dim() != 2 || input_ids_.numel() == 0 ||
        !at::isIntegralType(input_ids_.scalar_type(), true)) {
      throw InputError("input_ids: expected integers [rows, columns] with at least one token, got {} [{}]",
                       c10::toString(input_ids_.scalar_type()), fmt::join(input_ids_.sizes(), ", "));
    }
    input_ids_ = input_ids_.to(at::kLong);
    if (attention_mask_.defined()) require_shape(attention_mask_, "attention_mask", {rows(), columns()});
  }

  int64_t rows() const { return input_ids_.size(0); }
  int64_t columns() const { return input_ids_.size(1); }

  at::Tensor tensor(const std::string& name) const { return read_tensor(file_, prefix_ + name); }
  at::Tensor optional(const std::string& name) const { return read_optional_tensor(file_, prefix_ + name); }
  bool has(const std::string& name) const { return file_.entries().contains(prefix_ + name); }

  Batch packed(const at::Tensor& labels, int64_t vocab_size) const {
    return pack(input_ids_, attention_mask_, labels, position_ids_, vocab_size);
  }

  /// Numbers `name` of a shape, in float64.
  at::Tensor numbers(const std::string& name, at::IntArrayRef shape) const {
    const at::Tensor read = tensor(name);
    require_shape(read, name, shape);
    return read.to(at::kDouble);
  }

  /// The columns w of `name` [B, w], a tensor over the last ones of T.
  int64_t width(const std::string& name) const {
    const at::Tensor read = tensor(name);
    if (read.dim() != 2 || read.size(1) < 1 || read.size(1) > columns()) {
      throw InputError("{}: expected shape [{}, 1 to {}], got [{}]", name, rows(), columns(),
                       fmt::join(read.sizes(), ", "));
    }
    return read.size(1);
  }

  /// Zeros and ones `name` [B, width] over the last columns, as bool [B, T].
  at::Tensor mask(const std::string& name, int64_t width) const {
    const at::Tensor read = tensor(name);
    require_shape(read, name, {rows(), width});
    if (!at::isIntegralType(read.scalar_type(), /*includeBool=*/true) ||
        !(read.eq(0) | read.eq(1)).all().item<bool>()) {
      throw InputError("{}: expected integers 0 and 1", name);
    }
    return last_columns(read.to(at::kBool));
  }

  /// [B, w] put under the last w of T columns, 0 before them.
  at::Tensor last_columns(const at::Tensor& values) const {
    return at::constant_pad_nd(values, {columns() - values.size(1), 0});
  }

  /// input_ids where `mask` [B, T] selects a token, else no target. Throws where it selects padding or what
  /// padding would predict; the first column of all is predicted by nothing and dropped, as its label is
  /// elsewhere.
  at::Tensor labels(const at::Tensor& mask, const std::string& name) const {
    require_real(mask, 0, name, "selects padding, expected 0 where attention_mask is 0");
    require_real(moved(mask), 1, name, "selects a token that padding would predict, expected 0");
    return at::where(mask, input_ids_, at::full_like(input_ids_, kNoTarget));
  }

  /// Entries [B, T] of tokens, at the column whose logits predict them.
  at::Tensor moved(const at::Tensor& of_tokens) const {
    return at::constant_pad_nd(of_tokens.narrow(1, 1, columns() - 1), {0, 1});
  }

  /// Entries [B, T] of tokens on the packed stream, at the token that predicts them, [N].
  at::Tensor on_stream(const Batch& batch, const at::Tensor& of_tokens) const {
    return moved(of_tokens).flatten().index_select(0, batch.padded_places);
  }

  /// Throws with what `name` does wrong where `flags` [B, T] ask for padding; they stand `moved_by` columns
  /// before what they speak of.
  void require_real(const at::Tensor& flags, int64_t moved_by, const std::string& name,
                    const char* wrong) const {
    if (!attention_mask_.defined()) return;
    const at::Tensor places = (flags & attention_mask_.eq(0)).nonzero();
    if (places.size(0) == 0) return;
    throw InputError("{}: row {}, column {} of input_ids {}", name, places[0][0].item<int64_t>(),
                     places[0][1].item<int64_t>() + moved_by, wrong);
  }

  const at::Tensor& input_ids() const { return input_ids_; }

 private:
  static void require_shape(const at::Tensor& tensor, const std::string& name, at::IntArrayRef shape) {
    if (tensor.sizes() == shape) return;
    throw InputError("{}: expected shape [{}], got [{}]", name, fmt::join(shape, ", "),
                     fmt::join(tensor.sizes(), ", "));
  }

  const SafetensorsFile& file_;
  std::string prefix_;
  at::Tensor input_ids_;
  at::Tensor attention_mask_;
  at::Tensor position_ids_;
};

Batch read_pairs(const PaddedFile& file, const ObjectiveKind& kind, int64_t vocab_size) {
  const int64_t pairs = number_of_pairs(kind.name, file.rows());
  Batch batch =
      file.packed(file.labels(file.mask("completion_mask", file.columns()), "completion_mask"), vocab_size);
  if (file.has("ref_chosen_logps") || file.has("ref_rejected_logps")) {
    batch.sequence_inputs[inputs::kReferenceSums] =
        at::cat({file.numbers("ref_chosen_logps", {pairs}), file.numbers("ref_rejected_logps", {pairs})});
  }
  return batch;
}

Batch read_labelled(const PaddedFile& file, int64_t vocab_size) {
  Batch batch =
      file.packed(file.labels(file.mask("completion_mask", file.columns()), "completion_mask"), vocab_size);
  batch.sequence_inputs[inputs::kRole] = file.numbers("role", {file.rows()});
  if (file.has("ref_logps")) {
    batch.sequence_inputs[inputs::kReferenceSums] = file.numbers("ref_logps", {file.rows()});
  }
  return batch;
}

/// Reads `name` [B, width] of the last columns into token input `input`, where `mask` [B, T] is.
void read_tokens(const PaddedFile& file, Batch& batch, const std::string& name, const char* input,
                 int64_t width, const at::Tensor& mask) {
  const at::Tensor numbers = file.last_columns(file.numbers(name, {file.rows(), width}));
  batch.token_inputs[input] = file.on_stream(batch, numbers.masked_fill(mask.logical_not(), 0.0));
}

Batch read_completions(const PaddedFile& file, int64_t vocab_size) {
  const int64_t width = file.width("completion_mask");
  const at::Tensor mask = file.mask("completion_mask", width);
  Batch batch = file.packed(file.labels(mask, "completion_mask"), vocab_size);
  if (file.tensor("advantages").dim() == 1) {
    const at::Tensor advantages = file.numbers("advantages", {file.rows()});
    batch.sequence_inputs[inputs::kAdvantages] = advantages;
    const at::Tensor of_rows = advantages.unsqueeze(1).expand({-1, file.columns()});
    batch.token_inputs[inputs::kAdvantages] =
        file.on_stream(batch, of_rows.masked_fill(mask.logical_not(), 0.0));
  } else {
    read_tokens(file, batch, "advantages", inputs::kAdvantages, width, mask);
  }
  for (const auto& [name, input] :
       {std::pair{"old_per_token_logps", inputs::kOldLogProbabilities},
        std::pair{"ref_per_token_logps", inputs::kReferenceLogProbabilities},
        std::pair{"sampling_per_token_logps", inputs::kSamplingLogProbabilities}}) {
    if (file.has(name)) read_tokens(file, batch, name, input, width, mask);
  }
  if (file.has("old_logps"))
    batch.sequence_inputs[inputs::kOldSums] = file.numbers("old_logps", {file.rows()});
  if (file.has("importance_sampling_ratio")) {
    // Of tokens, or of sequences: vllm_importance_sampling_mode.
    const bool of_sequences = file.width("importance_sampling_ratio") == 1;
    const at::Tensor ratio =
        file.last_columns(file.numbers("importance_sampling_ratio", {file.rows(), of_sequences ? 1 : width})
                              .expand({file.rows(), width}));
    batch.token_inputs[inputs::kImportanceSamplingRatio] =
        file.on_stream(batch, ratio.masked_fill(mask.logical_not(), 0.0));
  }
  return batch;
}

Batch read_responses(const PaddedFile& file, int64_t vocab_size) {
  const int64_t width = file.width("response_mask");
  const at::Tensor mask = file.mask("response_mask", width);
  const at::Tensor responses = file.last_columns(file.numbers("responses", {file.rows(), width}));
  if ((responses.ne(file.input_ids()) & mask).any().item<bool>()) {
    throw InputError("responses: not the last {} columns of input_ids where response_mask is 1", width);
  }
  Batch batch = file.packed(file.labels(mask, "response_mask"), vocab_size);
  read_tokens(file, batch, "old_logprobs", inputs::kOldLogProbabilities, width, mask);
  read_tokens(file, batch, "advantages", inputs::kAdvantages, width, mask);
  if (file.has("ref_logprobs")) {
    read_tokens(file, batch, "ref_logprobs", inputs::kReferenceLogProbabilities, width, mask);
  }
  if (file.has("value_mask")) {
    const at::Tensor value_mask = file.mask("value_mask", width);
    file.require_real(file.moved(value_mask), 1, "value_mask", "asks for a value of padding, expected 0");
    batch.value_mask = file.on_stream(batch, value_mask);
    read_tokens(file, batch, "old_values", inputs::kOldValues, width, value_mask);
    read_tokens(file, batch, "returns", inputs::kReturns, width, value_mask);
  }
  return batch;
}

/// Makes up inputs from one seeded stream of random numbers.
class Inventor {
 public:
  Inventor(Batch& batch, int64_t vocab_size, uint64_t seed)
      : batch_(batch),
        typical_(-std::log(static_cast<double>(vocab_size))),
        generator_(at::detail::createCPUGenerator(seed)) {}

  at::Tensor normal(int64_t size) { return at::randn({size}, generator_, at::kDouble); }

  void log_probabilities(const char* name) {
    batch_.token_inputs[name] = normal(batch_.size()) * 0.1 + typical_;
  }
  void numbers(const char* name) { batch_.token_inputs[name] = normal(batch_.size()); }
  void advantages() {
    const at::Tensor of_sequences = normal(static_cast<int64_t>(batch_.offsets.size()) - 1);
    batch_.sequence_inputs[inputs::kAdvantages] = of_sequences;
    at::Tensor& advantages = batch_.token_inputs[inputs::kAdvantages] =
        at::zeros({batch_.size()}, at::kDouble);
    for (size_t i = 0; i + 1 < batch_.offsets.size(); ++i) {
      advantages.slice(0, batch_.offsets[i], batch_.offsets[i + 1])
          .fill_(of_sequences[static_cast<int64_t>(i)]);
    }
  }

 private:
  Batch& batch_;
  double typical_;
  at::Generator generator_;
};

/// Tokens of the prompt of a sequence: a quarter, or those wanted up to a half, but at least one.
int64_t prompt_length(int64_t length, int64_t wanted) {
  return std::max<int64_t>(wanted > 0 ? std::min(wanted, length / 2) : length / 4, 1);
}

}  // namespace

Batch read_objective_batch(const ObjectiveKind& kind, const SafetensorsFile& file, int64_t vocab_size,
                           const std::string& prefix) {
  // Tensors that can't be read are reported with their file already.
  const std::string where = file.path().string() + ": ";
  try {
    const PaddedFile padded(file, prefix);
    switch (kind.layout) {
      case Layout::kPairs:
        return read_pairs(padded, kind, vocab_size);
      case Layout::kLabelled:
        return read_labelled(padded, vocab_size);
      case Layout::kCompletions:
        return read_completions(padded, vocab_size);
      case Layout::kResponses:
        return read_responses(padded, vocab_size);
      case Layout::kLabels:
        break;
    }
    return padded.packed(padded.optional("labels"), vocab_size);
  } catch (const InputError& error) {
    const std::string message = error.what();
    throw InputError("{}{}", message.starts_with(where) ? "" : where, message);
  }
}

bool needs_reference(const ObjectiveKind& kind, const Options& options, const Batch& batch) {
  return kind.uses_reference && kind.uses_reference(options) &&
         !batch.sequence_inputs.contains(inputs::kReferenceSums) &&
         !batch.token_inputs.contains(inputs::kReferenceLogProbabilities);
}

Batch synthetic_batch(const ObjectiveKind& kind, const Options& options, int64_t sequences, int64_t seq_len,
                      int64_t vocab_size, uint64_t seed, int64_t prompt) {
  std::vector<int64_t> lengths(static_cast<size_t>(sequences), seq_len);
  if (kind.layout == Layout::kPairs) {
    if (seq_len < 4) {
      throw InputError("{}: sequence length {}, expected at least 4, two for each of a pair", kind.name,
                       seq_len);
    }
    std::fill(lengths.begin(), lengths.end(), seq_len / 2);
    lengths.insert(lengths.end(), static_cast<size_t>(sequences), seq_len - seq_len / 2);
  }
  Batch batch = random_batch(lengths, vocab_size, seed);
  if (kind.layout == Layout::kLabels) return batch;

  at::Tensor has_target = at::zeros({batch.size()}, at::kBool);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t unscored = prompt_length(lengths[i], prompt);
    // The prompt's last token predicts the completion's first.
    has_target.narrow(0, batch.offsets[i] + unscored - 1, lengths[i] - unscored + 1).fill_(true);
    if (kind.layout == Layout::kPairs && i >= lengths.size() / 2) {
      const int64_t shared = prompt_length(seq_len / 2, prompt);
      batch.tokens.narrow(0, batch.offsets[i], shared)
          .copy_(batch.tokens.narrow(0, batch.offsets[i - lengths.size() / 2], shared));
    }
  }
  batch.targets.masked_fill_(has_target.logical_not(), kNoTarget);

  Inventor invent(batch, vocab_size, seed + 1);
  if (kind.layout == Layout::kLabelled) {
    batch.sequence_inputs[inputs::kRole] =
        (1 - at::arange(sequences)).remainder(3).to(at::kDouble);  // 1, 0, 2, 1, ...
  }
  if (kind.layout == Layout::kCompletions || kind.layout == Layout::kResponses) {
    invent.advantages();
    invent.log_probabilities(inputs::kOldLogProbabilities);
  }
  if (kind.layout == Layout::kResponses) {
    batch.value_mask = has_target;  // one place more than there are targets: the last token's
    invent.numbers(inputs::kOldValues);
    invent.numbers(inputs::kReturns);
  }
  if (kind.uses_reference && kind.uses_reference(options))
    invent.log_probabilities(inputs::kReferenceLogProbabilities);
  return batch;
}

}  // namespace streambp
