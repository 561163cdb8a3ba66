#include "streambp/model/batch.h"

#include <algorithm>
#include <numeric>

#include "streambp/error.h"

namespace streambp {
namespace {

/// `tensor` as int64 on the CPU, checked against the shape of input_ids.
at::Tensor as_integers(const at::Tensor& tensor, const char* name, at::IntArrayRef shape) {
  if (!at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    throw InputError("{}: expected an integer tensor, got {}", name, c10::toString(tensor.scalar_type()));
  }
  if (tensor.sizes() != shape) {
    throw InputError("{}: expected the shape of input_ids, [{}], got [{}]", name, fmt::join(shape, ", "),
                     fmt::join(tensor.sizes(), ", "));
  }
  return tensor.to(at::kCPU, at::kLong).contiguous();
}

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

/// The columns [first, last) of a row that hold real tokens.
struct RealColumns {
  int64_t first = 0;
  int64_t last = 0;
};

RealColumns real_columns(const int64_t* mask, int64_t row, int64_t columns) {
  RealColumns real;
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t value = mask == nullptr ? 1 : mask[row * columns + column];
    if (value != 0 && value != 1) {
      throw InputError("attention_mask[{}, {}] is {}: expected 0 or 1", row, column, value);
    }
    if (value == 0) continue;
    if (real.last == 0) {
      real.first = column;
    } else if (real.last != column) {
      throw InputError("attention_mask row {} has a hole at column {}: padding belongs to the ends of a row",
                       row, real.last);
    }
    real.last = column + 1;
  }
  return real;
}

void check_in_vocabulary(const char* name, int64_t value, int64_t row, int64_t column, int64_t vocab_size) {
  if (value < 0 || value >= vocab_size) {
    throw InputError("{}[{}, {}] is {}: expected a token id from 0 to {}", name, row, column, value,
                     vocab_size - 1);
  }
}

/// Beyond any context. Positions stay whole numbers in float64, and differences of two in 64 bits.
constexpr int64_t kMaxPosition = int64_t{1} << 40;

/// What pack() was given, as int64 on the CPU and checked for shape, and the batch it becomes.
class PackedRows {
 public:
  PackedRows(const at::Tensor& input_ids, const at::Tensor& attention_mask, const at::Tensor& labels,
             const at::Tensor& position_ids, int64_t vocab_size, FirstLabels first_labels)
      : vocab_size_(vocab_size), first_labels_(first_labels) {
    if (input_ids.dim() != 2 || input_ids.numel() == 0) {
      throw InputError("input_ids: expected a shape [rows, columns] with at least one token, got [{}]",
                       fmt::join(input_ids.sizes(), ", "));
    }
    if (input_ids.numel() > kMaxTokens) {
      throw InputError("input_ids: {} tokens, padding included, expected at most {}", input_ids.numel(),
                       kMaxTokens);
    }
    rows_ = input_ids.size(0);
    columns_ = input_ids.size(1);
    token_ = data(as_integers(input_ids, "input_ids", input_ids.sizes()));
    const auto optional = [&](const at::Tensor& tensor, const char* name) {
      return tensor.defined() ? data(as_integers(tensor, name, input_ids.sizes())) : nullptr;
    };
    mask_ = optional(attention_mask, "attention_mask");
    label_ = optional(labels, "labels");
    // One row of positions is every row's.
    const bool shared = position_ids.defined() && position_ids.sizes() == at::IntArrayRef({1, columns_});
    position_ = optional(shared ? position_ids.expand({rows_, columns_}) : position_ids, "position_ids");
  }

  Batch batch() && {
    batch_.rope_length = length();
    batch_.offsets = {0};
    batch_.padded_rows = rows_;
    batch_.padded_columns = columns_;
    for (int64_t row = 0; row < rows_; ++row) add_row(row);
    if (tokens_.empty()) throw InputError("attention_mask: no row has a token; expected at least one 1");
    batch_.tokens = to_tensor(tokens_);
    batch_.positions = to_tensor(positions_);
    batch_.targets = to_tensor(targets_);
    batch_.padded_indices = to_tensor(indices_);
    return std::move(batch_);
  }

 private:
  const int64_t* data(at::Tensor tensor) {
    return kept_.emplace_back(std::move(tensor)).const_data_ptr<int64_t>();
  }

  /// 1 + the greatest position of all, padding included, as transformers has it; without position_ids
  /// it counts columns.
  int64_t length() const {
    if (position_ == nullptr) return columns_;
    const int64_t* const end = position_ + rows_ * columns_;
    const int64_t* const greatest = std::max_element(position_, end);
    if (*greatest >= kMaxPosition) {
      const int64_t index = greatest - position_;
      throw InputError("position_ids[{}, {}] is {}: expected less than {}", index / columns_,
                       index % columns_, *greatest, kMaxPosition);
    }
    return *greatest + 1;
  }

  void add_row(int64_t row) {
    const RealColumns real = real_columns(mask_, row, columns_);
    const int64_t base = row * columns_;
    if (label_ != nullptr) check_labels(row, real);
    for (int64_t column = real.first; column < real.last; ++column) {
      check_in_vocabulary("input_ids", token_[base + column], row, column, vocab_size_);
      const int64_t position = position_ == nullptr ? column - real.first : position_[base + column];
      if (position < 0)
        throw InputError("position_ids[{}, {}] is {}: expected 0 or more", row, column, position);
      if (column > real.first && begins_document(base + column)) {
        batch_.packed = true;
        batch_.offsets.push_back(static_cast<int64_t>(tokens_.size()));
      }
      tokens_.push_back(token_[base + column]);
      positions_.push_back(position);
      targets_.push_back(target(row, column, real));
      indices_.push_back(base + column);
    }
    batch_.offsets.push_back(static_cast<int64_t>(tokens_.size()));
  }

  /// Whether the token at `index`, not the first of its row, is another document's than the one before it.
  bool begins_document(int64_t index) const {
    return mask_ == nullptr && position_ != nullptr && position_[index] != position_[index - 1] + 1;
  }

  void check_labels(int64_t row, const RealColumns& real) {
    for (int64_t column = 0; column < columns_; ++column) {
      const int64_t label = label_[row * columns_ + column];
      if (label == kNoTarget) continue;
      check_in_vocabulary("labels", label, row, column, vocab_size_);
      // The first column of a row is predicted by nothing; transformers drops its label as well.
      if (column == 0 || (column - 1 >= real.first && column - 1 < real.last)) continue;
      const bool first = column == real.first && real.last > 0;
      if (first_labels_ == FirstLabels::kIgnoreAll || (first && first_labels_ == FirstLabels::kIgnore)) {
        ++batch_.first_labels_ignored;
        continue;
      }
      throw InputError(
          "labels[{}, {}] would be predicted from padding: expected -100 there{}", row, column,
          first ? ", or --first-labels ignore to drop such labels"
                : ", or --first-labels ignore-all to drop such labels, which transformers trains on");
    }
  }

  /// What the logits at a real token are scored on.
  int64_t target(int64_t row, int64_t column, const RealColumns& real) {
    const int64_t index = row * columns_ + column;
    const int64_t next = column + 1;
    if (next == columns_) return kNoTarget;
    const bool across = next < real.last && begins_document(index + 1);
    if (label_ == nullptr) return next < real.last && !across ? token_[index + 1] : kNoTarget;
    if (across && label_[index + 1] != kNoTarget) ++batch_.targets_across_documents;
    return label_[index + 1];
  }

  int64_t vocab_size_;
  FirstLabels first_labels_;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<at::Tensor> kept_;  // what the pointers point into; null: not given
  const int64_t* token_ = nullptr;
  const int64_t* mask_ = nullptr;
  const int64_t* label_ = nullptr;
  const int64_t* position_ = nullptr;
  std::vector<int64_t> tokens_, positions_, targets_, indices_;
  Batch batch_;
};

}  // namespace

Batch pack(const at::Tensor& input_ids, const at::Tensor& attention_mask, const at::Tensor& labels,
           const at::Tensor& position_ids, int64_t vocab_size, FirstLabels first_labels) {
  return PackedRows(input_ids, attention_mask, labels, position_ids, vocab_size, first_labels).batch();
}

Batch random_batch(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed) {
  Batch batch;
  batch.offsets = {0};
  std::vector<int64_t> positions, indices;
  for (const int64_t length : lengths) {
    if (length <= 0) throw InputError("sequence length {}: expected 1 or more", length);
    if (length > kMaxTokens - batch.offsets.back())
      throw InputError("sequence length {}: expected at most {} tokens in a batch", length, kMaxTokens);
    for (int64_t t = 0; t < length; ++t) positions.push_back(t);
    batch.offsets.push_back(batch.offsets.back() + length);
    batch.padded_columns = std::max(batch.padded_columns, length);
  }
  batch.padded_rows = static_cast<int64_t>(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t t = 0; t < lengths[i]; ++t)
      indices.push_back(static_cast<int64_t>(i) * batch.padded_columns + t);
  }
  at::Generator generator = at::detail::createCPUGenerator(seed);
  batch.tokens = at::randint(vocab_size, {batch.size()}, generator, at::kLong);
  batch.positions = to_tensor(positions);
  batch.targets = at::full({batch.size()}, kNoTarget, at::kLong);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t begin = batch.offsets[i];
    batch.targets.narrow(0, begin, lengths[i] - 1).copy_(batch.tokens.narrow(0, begin + 1, lengths[i] - 1));
  }
  batch.padded_indices = to_tensor(indices);
  return batch;
}

Batch select_sequences(const Batch& batch, const std::vector<int64_t>& sequences) {
  std::vector<at::Tensor> runs;
  Batch selected;
  selected.offsets = {0};
  for (const int64_t sequence : sequences) {
    const int64_t begin = batch.offsets[sequence], end = batch.offsets[sequence + 1];
    runs.push_back(at::arange(begin, end, at::kLong));
    selected.offsets.push_back(selected.offsets.back() + end - begin);
  }
  const at::Tensor indices = at::cat(runs);
  const auto pick = [&](const at::Tensor& per_token) {
    return per_token.defined() ? per_token.index_select(0, indices) : at::Tensor();
  };
  selected.tokens = pick(batch.tokens);
  selected.positions = pick(batch.positions);
  selected.targets = pick(batch.targets);
  selected.value_mask = pick(batch.value_mask);
  selected.router_indices = pick(batch.router_indices);
  selected.indexer_indices = pick(batch.indexer_indices);
  selected.indices_source = batch.indices_source;
  selected.padded_indices = pick(batch.padded_indices);
  selected.padded_rows = batch.padded_rows;
  selected.padded_columns = batch.padded_columns;
  selected.packed = batch.packed;
  selected.scalar_inputs = batch.scalar_inputs;
  selected.rope_length = rope_length(batch);
  for (const auto& [name, input] : batch.token_inputs) selected.token_inputs[name] = pick(input);
  for (const auto& [name, input] : batch.sequence_inputs) {
    selected.sequence_inputs[name] = input.index_select(0, to_tensor(sequences));
  }
  return selected;
}

int64_t rope_length(const Batch& batch) {
  const int64_t own = batch.size() == 0 ? 0 : batch.positions.max().item<int64_t>() + 1;
  return std::max(own, batch.rope_length);
}

Batch without_given_indices(const Batch& batch) {
  Batch same = batch;
  same.router_indices.reset();
  same.indexer_indices.reset();
  return same;
}

std::vector<Batch> micro_batches(const Batch& batch, int64_t parts, bool pairs) {
  const auto sequences = static_cast<int64_t>(batch.offsets.size()) - 1;
  const int64_t units = pairs ? sequences / 2 : sequences;
  parts = std::min(parts, units);
  std::vector<Batch> batches;
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<int64_t> chosen;
    for (int64_t i = part * units / parts; i < (part + 1) * units / parts; ++i) chosen.push_back(i);
    const size_t firsts = chosen.size();
    for (size_t i = 0; pairs && i < firsts; ++i) chosen.push_back(chosen[i] + units);
    batches.push_back(select_sequences(batch, chosen));
  }
  return batches;
}

at::Tensor unpack(const Batch& batch, const at::Tensor& values) {
  std::vector<int64_t> flat = values.sizes().vec();
  flat[0] = batch.padded_rows * batch.padded_columns;
  at::Tensor padded = at::zeros(flat, values.options());
  padded.index_copy_(0, batch.padded_indices.to(values.device()), values);
  std::vector<int64_t> shape{batch.padded_rows, batch.padded_columns};
  shape.insert(shape.end(), flat.begin() + 1, flat.end());
  return padded.reshape(shape);
}

}  // namespace streambp
