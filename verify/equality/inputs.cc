#include "verify/equality/inputs.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <stdlib.h>
#include <vector>

#include "streambp/data/objective_inputs.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/objective/terms.h"
#include "verify/equality/batches.h"

namespace streambp::verify {
namespace {

/// Rows of random tokens, each a prompt and a completion, and their columns in a padded tensor.
class PaddedRows {
 public:
  PaddedRows(const ObjectiveKind& kind, Padding padding, const std::vector<RowLengths>& lengths,
             int64_t vocab_size, uint64_t seed)
      : vocab_size_(vocab_size), generator_(at::detail::createCPUGenerator(seed)) {
    const bool completions = kind.layout == Layout::kCompletions || kind.layout == Layout::kResponses;
    const bool equal = padding == Padding::kNone;
    for (const RowLengths& of : lengths) rows_.push_back({of.prompt, of.completion});
    // The two parts have columns of their own where completions do.
    for (const Row& row : rows_) {
      prompt_columns_ = std::max(prompt_columns_, row.prompt);
      completion_columns_ = std::max(completion_columns_, row.completion);
      columns_ = std::max(columns_, row.prompt + row.completion);
    }
    longest_completion_ = completion_columns_;
    if (padding == Padding::kLeft) prompt_columns_ += 2;
    if (padding == Padding::kRight) completion_columns_ += 2;
    columns_ = completions ? prompt_columns_ + completion_columns_ : columns_ + (equal ? 0 : 2);
    for (Row& row : rows_) {
      row.first = completions                 ? prompt_columns_ - row.prompt
                  : padding == Padding::kLeft ? columns_ - row.prompt - row.completion
                                              : 0;
    }
  }

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t completion_columns() const { return completion_columns_; }

  /// What every file has. Under the padding stands no token at all, so that it would be noticed.
  std::map<std::string, at::Tensor> tokens() {
    at::Tensor input_ids = at::full({rows(), columns_}, vocab_size_ + 7, at::kLong);
    at::Tensor mask = at::zeros({rows(), columns_}, at::kLong);
    at::Tensor positions = at::full({rows(), columns_}, -999, at::kLong);  // the greatest one counts
    for (int64_t i = 0; i < rows(); ++i) {
      const Row& row = rows_[static_cast<size_t>(i)];
      const int64_t size = row.prompt + row.completion;
      input_ids[i].narrow(0, row.first, size).copy_(equality_tokens({size}, vocab_size_, generator_));
      mask[i].narrow(0, row.first, size).fill_(1);
      positions[i].narrow(0, row.first, size).copy_(at::arange(size));
    }
    return {{"input_ids", input_ids}, {"attention_mask", mask}, {"position_ids", positions}};
  }

  /// 1 at the completion of every row, and at the next token where the longest completion leaves room and
  /// `one_more` asks for it; of all columns or of the completions' alone.
  at::Tensor completion_mask(bool of_completions, bool one_more = false) const {
    at::Tensor mask = at::zeros({rows(), columns_}, at::kLong);
    for (int64_t i = 0; i < rows(); ++i) {
      const Row& row = rows_[static_cast<size_t>(i)];
      const int64_t first = row.first + row.prompt;
      const int64_t more = one_more && row.completion < longest_completion_ ? 1 : 0;
      mask[i].slice(0, first, first + row.completion + more).fill_(1);
    }
    return of_completions ? mask.narrow(1, columns_ - completion_columns_, completion_columns_).contiguous()
                          : mask;
  }

  at::Tensor normal(int64_t size, double deviation) {
    return at::randn({size}, generator_, at::kDouble) * deviation;
  }

  /// A number for every column of a completion, the same whatever the padding.
  at::Tensor of_completions(double deviation) {
    at::Tensor numbers = at::zeros({rows(), completion_columns_}, at::kDouble);
    for (int64_t i = 0; i < rows(); ++i) {
      const int64_t size = rows_[static_cast<size_t>(i)].completion + 1;  // a value may be asked for one more
      const at::Tensor drawn = normal(size, deviation);
      const int64_t room = std::min(size, completion_columns_);
      numbers[i].narrow(0, 0, room).copy_(drawn.narrow(0, 0, room));
    }
    return numbers;
  }

  /// About two thirds of the completions' tokens as labels, the first one always.
  at::Tensor labels(const at::Tensor& input_ids) {
    at::Tensor labels = at::full_like(input_ids, kNoTarget);
    for (int64_t i = 0; i < rows(); ++i) {
      const Row& row = rows_[static_cast<size_t>(i)];
      const int64_t first = row.first + row.prompt;
      at::Tensor kept = at::rand({row.completion}, generator_, at::kDouble).lt(0.67);
      if (row.completion > 0) kept[0] = true;
      const at::Tensor tokens = input_ids[i].narrow(0, first, row.completion);
      labels[i]
          .narrow(0, first, row.completion)
          .copy_(at::where(kept, tokens, at::full_like(tokens, kNoTarget)));
    }
    return labels;
  }

 private:
  struct Row {
    int64_t prompt = 0;
    int64_t completion = 0;
    int64_t first = 0;  // column
  };

  int64_t vocab_size_;
  at::Generator generator_;
  std::vector<Row> rows_;
  int64_t prompt_columns_ = 0;
  int64_t longest_completion_ = 0;
  int64_t completion_columns_ = 0;  // with padding
  int64_t columns_ = 0;
};

/// Desirable, undesirable, `of_estimate`, desirable, and so on.
std::vector<int64_t> roles(int64_t rows, int64_t of_estimate) {
  const std::vector<int64_t> turn{1, 0, of_estimate, 1};
  std::vector<int64_t> roles;
  for (int64_t i = 0; i < rows; ++i) roles.push_back(turn[static_cast<size_t>(i) % turn.size()]);
  return roles;
}

std::map<std::string, at::Tensor> padded_tensors(const ObjectiveKind& kind, bool with_reference,
                                                 Padding padding, const std::vector<RowLengths>& lengths,
                                                 int64_t vocab_size, uint64_t seed) {
  PaddedRows rows(kind, padding, lengths, vocab_size, seed);
  std::map<std::string, at::Tensor> tensors = rows.tokens();
  const int64_t pairs = rows.rows() / 2;
  switch (kind.layout) {
    case Layout::kLabels:
      tensors["labels"] = rows.labels(tensors.at("input_ids"));
      break;
    case Layout::kPairs:
      tensors["completion_mask"] = rows.completion_mask(false);
      if (with_reference) {
        tensors["ref_chosen_logps"] = rows.normal(pairs, 1.0);
        tensors["ref_rejected_logps"] = rows.normal(pairs, 1.0);
      }
      break;
    case Layout::kRanked:
      tensors["margin"] = rows.normal(pairs, 1.0);
      break;
    case Layout::kTexts:
      break;
    case Layout::kLabelled:
      tensors["completion_mask"] = rows.completion_mask(false);
      tensors["role"] =
          at::tensor(roles(rows.rows(), /*of_estimate=*/padding == Padding::kNone ? 0 : 2), at::kLong);
      if (with_reference) tensors["ref_logps"] = rows.normal(rows.rows(), 1.0);
      break;
    case Layout::kCompletions:
      tensors["completion_mask"] = rows.completion_mask(true);
      tensors["advantages"] = rows.normal(rows.rows(), 1.0);
      if (padding != Padding::kNone) {
        tensors["old_per_token_logps"] = rows.of_completions(0.3);
        tensors["sampling_per_token_logps"] = rows.of_completions(0.3);
        tensors["importance_sampling_ratio"] = rows.of_completions(0.3).exp();
      }
      if (with_reference) tensors["ref_per_token_logps"] = rows.of_completions(0.3);
      break;
    case Layout::kResponses:
      tensors["response_mask"] = rows.completion_mask(true);
      tensors["responses"] = tensors.at("input_ids").slice(1, -rows.completion_columns()).contiguous();
      tensors["value_mask"] = rows.completion_mask(true, /*one_more=*/true);
      tensors["old_logprobs"] = rows.of_completions(0.3);
      tensors["advantages"] = rows.of_completions(1.0);
      tensors["old_values"] = rows.of_completions(0.3);
      tensors["returns"] = rows.of_completions(1.0);
      if (with_reference) tensors["ref_logprobs"] = rows.of_completions(0.3);
      break;
  }
  return tensors;
}

/// The real tokens of all rows as one row of documents.
void lay_in_one_row(std::map<std::string, at::Tensor>& tensors) {
  const at::Tensor real = tensors.at("attention_mask").to(at::kBool);
  tensors.erase("attention_mask");
  for (auto& [name, tensor] : tensors) {
    if (tensor.sizes() == real.sizes()) tensor = tensor.masked_select(real).unsqueeze(0);
  }
}

/// A folder that vanishes with all it holds.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "streambp-sweep-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::vector<RowLengths> row_lengths(const ObjectiveKind& kind, Padding padding, int64_t length) {
  if (padding == Padding::kNone) {
    const int64_t prompt = std::max<int64_t>(length / 3, 1);
    return std::vector<RowLengths>(4, {prompt, length - prompt});
  }
  std::vector<RowLengths> rows;
  for (const int64_t tokens : {length, length / 2 + 1, length * 2 / 3 + 1, length - 1}) {
    const int64_t prompt = std::max<int64_t>(tokens / 3, 1);
    rows.push_back({prompt, tokens - prompt});
  }
  rows[1].completion = 1;
  if (kind.layout == Layout::kCompletions) rows[2].completion = 0;
  return rows;
}

bool takes_documents(Layout layout) {
  return layout == Layout::kLabels || layout == Layout::kPairs || layout == Layout::kLabelled;
}

Batch objective_batch(const ObjectiveKind& kind, bool with_reference, Padding padding,
                      const std::vector<RowLengths>& rows, int64_t vocab_size, uint64_t seed) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "inputs.safetensors";
  std::map<std::string, at::Tensor> tensors =
      padded_tensors(kind, with_reference, padding == Padding::kDocuments ? Padding::kRight : padding, rows,
                     vocab_size, seed);
  if (padding == Padding::kDocuments) lay_in_one_row(tensors);
  write_tensors(path, tensors);
  return read_objective_batch(kind, SafetensorsFile::open(path), vocab_size);
}

void move_to_policy(Batch& batch, const at::Tensor& log_probabilities, const at::Tensor& values) {
  for (const char* name : {inputs::kOldLogProbabilities, inputs::kReferenceLogProbabilities,
                           inputs::kSamplingLogProbabilities}) {
    const auto found = batch.token_inputs.find(name);
    if (found != batch.token_inputs.end()) found->second = found->second + log_probabilities;
  }
  if (const auto found = batch.token_inputs.find(inputs::kOldValues); found != batch.token_inputs.end()) {
    found->second = found->second + values;
  }
  const auto sums = batch.sequence_inputs.find(inputs::kReferenceSums);
  if (sums == batch.sequence_inputs.end()) return;
  sums->second = sums->second.clone();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    sums->second[static_cast<int64_t>(i)] +=
        log_probabilities.slice(0, batch.offsets[i], batch.offsets[i + 1]).sum();
  }
}

}  // namespace streambp::verify
