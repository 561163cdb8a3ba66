#include "streambp/data/objective_inputs.h"

#include <algorithm>
#include <cmath>

#include "streambp/data/padded_tensors.h"
#include "streambp/error.h"
#include "streambp/model/config/rope_frequencies.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

/// The rows of a batch, or the documents that stand for them.
int64_t sequences_of(const Batch& batch) {
  return static_cast<int64_t>(batch.offsets.size()) - 1;
}

/// Of `of_tokens` [N], over each sequence's tokens: [S] float64.
at::Tensor sums_of_sequences(const Batch& batch, const at::Tensor& of_tokens) {
  std::vector<double> sums;
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i)
    sums.push_back(of_tokens.slice(0, batch.offsets[i], batch.offsets[i + 1]).sum().item<double>());
  return at::tensor(at::ArrayRef<double>(sums), at::kDouble);
}

Batch read_pairs(const PaddedTensors& file, const ObjectiveKind& kind, int64_t vocab_size) {
  const at::Tensor mask = file.mask("completion_mask", file.columns());
  Batch batch = file.packed(file.labels(mask, "completion_mask"), vocab_size);
  batch.sequence_inputs[inputs::kCompletionTokens] =
      sums_of_sequences(batch, mask.flatten().index_select(0, batch.padded_indices));
  const int64_t pairs = number_of_pairs(kind.name, sequences_of(batch));
  if (file.has("ref_chosen_logps") || file.has("ref_rejected_logps")) {
    batch.sequence_inputs[inputs::kReferenceSums] =
        at::cat({file.numbers("ref_chosen_logps", {pairs}), file.numbers("ref_rejected_logps", {pairs})});
  }
  return batch;
}

/// Texts of which no token is predicted.
Batch read_texts(const PaddedTensors& file, int64_t vocab_size) {
  Batch batch = file.packed({}, vocab_size);
  batch.targets.fill_(kNoTarget);
  return batch;
}

Batch read_ranked(const PaddedTensors& file, const ObjectiveKind& kind, int64_t vocab_size,
                  std::optional<int64_t> pad_token_id) {
  const int64_t pairs = number_of_pairs(kind.name, file.rows());
  Batch batch = read_texts(file, vocab_size);
  score_ends(batch, pad_token_id);
  if (file.has("margin")) {
    const at::Tensor margins = file.numbers("margin", {pairs});
    batch.sequence_inputs[inputs::kMargin] = at::cat({margins, margins});
  }
  return batch;
}

Batch read_labelled(const PaddedTensors& file, int64_t vocab_size) {
  Batch batch =
      file.packed(file.labels(file.mask("completion_mask", file.columns()), "completion_mask"), vocab_size);
  batch.sequence_inputs[inputs::kRole] = file.numbers("role", {sequences_of(batch)});
  if (file.has(kPassColumns)) batch.sequence_inputs[kPassColumns] = file.tensor(kPassColumns);
  if (file.has("ref_logps")) {
    batch.sequence_inputs[inputs::kReferenceSums] = file.numbers("ref_logps", {sequences_of(batch)});
  }
  return batch;
}

/// Puts `numbers` [B, w] of the last columns, the file's `name`, into token input `input`, where `mask` [B,
/// T] is.
void put_tokens(const PaddedTensors& file, Batch& batch, const at::Tensor& numbers, const std::string& name,
                const char* input, const at::Tensor& mask) {
  const at::Tensor masked = file.last_columns(numbers).masked_fill(mask.logical_not(), 0.0);
  // A server of samples writes NaN where it does not know a token's.
  const bool may_be_unknown = name == "sampling_per_token_logps";
  PaddedTensors::require_finite(may_be_unknown ? masked.masked_fill(masked.isnan(), 0.0) : masked, name);
  batch.token_inputs[input] = file.on_stream(batch, masked);
}

/// The same of `name` [B, width].
void read_tokens(const PaddedTensors& file, Batch& batch, const std::string& name, const char* input,
                 int64_t width, const at::Tensor& mask) {
  put_tokens(file, batch, file.numbers(name, {file.rows(), width}), name, input, mask);
}

/// The same of `name` [B, width], [B, 1] or [B]: one number for each row.
void read_tokens_or_rows(const PaddedTensors& file, Batch& batch, const std::string& name, const char* input,
                         int64_t width, const at::Tensor& mask) {
  const at::Tensor given = file.tensor(name);
  const bool of_rows = given.dim() == 1 || (given.dim() == 2 && given.size(1) == 1);
  if (!of_rows) return read_tokens(file, batch, name, input, width, mask);
  std::vector<int64_t> shape(static_cast<size_t>(given.dim()), 1);
  shape[0] = file.rows();
  put_tokens(file, batch, file.numbers(name, shape).reshape({-1, 1}).expand({-1, width}), name, input, mask);
}

Batch read_completions(const PaddedTensors& file, int64_t vocab_size) {
  const int64_t width = file.width("completion_mask");
  at::Tensor mask = file.mask("completion_mask", width);
  // What a tool wrote is seen and not scored.
  if (file.has("tool_mask")) mask = mask & file.mask("tool_mask", width);
  Batch batch = file.packed(file.labels(mask, "completion_mask"), vocab_size);
  read_tokens_or_rows(file, batch, "advantages", inputs::kAdvantages, width, mask);
  if (file.tensor("advantages").dim() == 1)
    batch.sequence_inputs[inputs::kAdvantages] = file.numbers("advantages", {file.rows()});
  if (file.has("old_logps"))
    batch.sequence_inputs[inputs::kOldSums] = file.numbers("old_logps", {file.rows()});
  if (file.has("importance_sampling_ratio")) {
    const at::Tensor given = file.tensor("importance_sampling_ratio");
    if (width > 1 && given.numel() == file.rows()) {
      const at::Tensor of_rows = given.to(at::kDouble).reshape({-1});
      PaddedTensors::require_finite(of_rows, "importance_sampling_ratio");  // of rows without a token too
      batch.sequence_inputs[inputs::kImportanceSamplingRatio] = of_rows;
    }
    read_tokens_or_rows(file, batch, "importance_sampling_ratio", inputs::kImportanceSamplingRatio, width,
                        mask);
  }
  for (const auto& [name, input] :
       {std::pair{"old_per_token_logps", inputs::kOldLogProbabilities},
        std::pair{"ref_per_token_logps", inputs::kReferenceLogProbabilities},
        std::pair{"sampling_per_token_logps", inputs::kSamplingLogProbabilities}}) {
    if (file.has(name)) read_tokens(file, batch, name, input, width, mask);
  }
  // TRL's normaliser: num_items_in_batch.clamp(min=1.0).
  for (auto& [name, number] : batch.scalar_inputs) number = std::max(number, 1.0);
  return batch;
}

Batch read_responses(const PaddedTensors& file, int64_t vocab_size) {
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

Batch read_objective_batch(const ObjectiveKind& kind, std::map<std::string, at::Tensor> tensors,
                           int64_t vocab_size, FirstLabels first_labels, std::optional<int64_t> pad_token_id,
                           const std::string& prefix, Documents documents) {
  std::vector<std::string> names;
  for (auto& [name, tensor] : tensors) {
    names.push_back(name);
    tensor = tensor.detach().to(at::kCPU);
  }
  refuse_unknown(kind, names, prefix);
  const PaddedTensors padded(std::move(tensors), prefix, kind, first_labels, documents);
  switch (kind.layout) {
    case Layout::kPairs:
      return read_pairs(padded, kind, vocab_size);
    case Layout::kRanked:
      return read_ranked(padded, kind, vocab_size, pad_token_id);
    case Layout::kTexts:
      return read_texts(padded, vocab_size);
    case Layout::kLabelled:
      return read_labelled(padded, vocab_size);
    case Layout::kCompletions:
      return read_completions(padded, vocab_size);
    case Layout::kResponses:
      return read_responses(padded, vocab_size);
    case Layout::kLabels:
      break;
  }
  Batch batch = padded.packed(padded.optional("labels"), vocab_size);
  const bool counted = std::find(names.begin(), names.end(), "num_items_in_batch") != names.end();
  if (batch.first_labels_ignored > 0 && counted) {
    throw InputError(
        "{}labels: padding would predict {} of them, which num_items_in_batch counts although --first-labels "
        "drops them: the loss would be too small; expected -100 there",
        prefix, batch.first_labels_ignored);
  }
  return batch;
}

Batch read_objective_batch(const ObjectiveKind& kind, const SafetensorsFile& file, int64_t vocab_size,
                           const std::string& prefix, FirstLabels first_labels,
                           std::optional<int64_t> pad_token_id, Documents documents) {
  // Tensors that can't be read are reported with their file already.
  const std::string where = file.path().string() + ": ";
  try {
    std::vector<std::string> names;
    for (const auto& [name, entry] : file.entries()) {
      if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
    }
    refuse_unknown(kind, names, prefix);  // before anything is read
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& name : names) tensors[name] = read_tensor(file, prefix + name);
    Batch batch = read_objective_batch(kind, std::move(tensors), vocab_size, first_labels, pad_token_id,
                                       prefix, documents);
    batch.indices_source = where + prefix;
    return batch;
  } catch (const InputError& error) {
    const std::string message = error.what();
    throw InputError("{}{}", message.starts_with(where) ? "" : where, message);
  }
}

FirstLabels parse_first_labels(const std::string& word) {
  static const std::map<std::string, FirstLabels> words{{"refuse", FirstLabels::kRefuse},
                                                        {"ignore", FirstLabels::kIgnore},
                                                        {"ignore-all", FirstLabels::kIgnoreAll}};
  if (const auto found = words.find(word); found != words.end()) return found->second;
  throw InputError("--first-labels '{}': expected refuse, ignore or ignore-all", word);
}

Documents parse_documents(const std::string& word) {
  if (word == "sdpa" || word == "flash") return word == "flash" ? Documents::kFlash : Documents::kSdpa;
  throw InputError("--documents '{}': expected sdpa or flash", word);
}

std::vector<std::string> reading_notes(const Batch& batch) {
  std::vector<std::string> notes;
  if (batch.targets_across_documents > 0) {
    notes.push_back(fmt::format(
        "labels of documents' first tokens: {}, predicted from the document before in the row, as "
        "transformers counts them (TRL's collator sets them to -100)",
        batch.targets_across_documents));
  }
  if (batch.first_labels_ignored > 0) {
    notes.push_back(
        fmt::format("labels ignored because padding would predict them: {}; transformers trains on them",
                    batch.first_labels_ignored));
  }
  if (const auto items = batch.scalar_inputs.find(kNumItemsInBatch); items != batch.scalar_inputs.end()) {
    // GRPO's alone has this name.
    if (const int64_t scored = count(batch).scored; items->second != static_cast<double>(scored))
      notes.push_back(
          fmt::format("{} is {}, the batch has {} completion tokens: dapo, cispo and vespo divide by the "
                      "former; TRL's counts a "
                      "generated batch, and its loss is divided by that x gradient_accumulation_steps / "
                      "steps_per_generation",
                      kNumItemsInBatch, items->second, scored));
  }
  return notes;
}

void score_ends(Batch& batch, std::optional<int64_t> pad_token_id) {
  batch.value_mask = at::zeros({batch.size()}, at::kBool);
  const auto tokens = batch.tokens.accessor<int64_t, 1>();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t first = batch.offsets[i];
    int64_t end = batch.offsets[i + 1];
    if (first == end) continue;
    while (end > first && pad_token_id && tokens[end - 1] == *pad_token_id) --end;
    batch.value_mask[std::max(end - 1, first)] = true;
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
  if (has_pairs(kind.layout)) {
    if (seq_len < 4) {
      throw InputError("{}: sequence length {}, expected at least 4, two for each of a pair", kind.name,
                       seq_len);
    }
    std::fill(lengths.begin(), lengths.end(), seq_len / 2);
    lengths.insert(lengths.end(), static_cast<size_t>(sequences), seq_len - seq_len / 2);
  }
  if (kind.layout == Layout::kTexts) {
    const auto blocks = 2 + static_cast<int64_t>(options.number("negatives", 0.0, 1e6));
    if (seq_len < blocks) {
      throw InputError("{}: sequence length {}, expected at least {}, one for each text of an anchor",
                       kind.name, seq_len, blocks);
    }
    lengths.clear();
    for (int64_t i = 0; i < blocks; ++i)
      lengths.insert(lengths.end(), static_cast<size_t>(sequences),
                     (seq_len * (i + 1)) / blocks - seq_len * i / blocks);
  }
  Batch batch = random_batch(lengths, vocab_size, seed);
  if (kind.layout == Layout::kLabels) return batch;
  if (kind.layout == Layout::kTexts || kind.layout == Layout::kRanked) {
    batch.targets.fill_(kNoTarget);
    if (kind.layout == Layout::kRanked) score_ends(batch);
    return batch;
  }

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
    batch.value_mask = has_target;  // one more than there are targets: the last token's
    invent.numbers(inputs::kOldValues);
    invent.numbers(inputs::kReturns);
  }
  if (kind.uses_reference && kind.uses_reference(options))
    invent.log_probabilities(inputs::kReferenceLogProbabilities);
  return batch;
}

}  // namespace streambp
