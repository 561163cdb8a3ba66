#include "streambp/model/batch.h"

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

}  // namespace

at::Tensor scored_places(const Batch& batch) {
  at::Tensor scored = batch.targets.to(at::kCPU).ne(kNoTarget);
  if (batch.value_mask.defined()) scored.logical_or_(batch.value_mask.to(at::kCPU));
  return scored.nonzero().squeeze(1);
}

Batch pack(const at::Tensor& input_ids, const at::Tensor& attention_mask, const at::Tensor& labels,
           const at::Tensor& position_ids, int64_t vocab_size) {
  if (input_ids.dim() != 2 || input_ids.numel() == 0) {
    throw InputError("input_ids: expected a shape [rows, columns] with at least one token, got [{}]",
                     fmt::join(input_ids.sizes(), ", "));
  }
  if (input_ids.numel() > kMaxTokens) {
    throw InputError("input_ids: {} tokens, padding included, expected at most {}", input_ids.numel(),
                     kMaxTokens);
  }
  const int64_t rows = input_ids.size(0);
  const int64_t columns = input_ids.size(1);
  const at::Tensor ids = as_integers(input_ids, "input_ids", input_ids.sizes());
  const auto optional = [&](const at::Tensor& tensor, const char* name) {
    return tensor.defined() ? as_integers(tensor, name, input_ids.sizes()) : at::Tensor();
  };
  const at::Tensor mask_tensor = optional(attention_mask, "attention_mask");
  const at::Tensor label_tensor = optional(labels, "labels");
  const at::Tensor position_tensor = optional(position_ids, "position_ids");
  const auto data = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<int64_t>() : nullptr;
  };
  const int64_t *token = data(ids), *mask = data(mask_tensor), *label = data(label_tensor),
                *position = data(position_tensor);

  std::vector<int64_t> tokens, positions, targets, places;
  Batch batch;
  batch.offsets = {0};
  batch.padded_rows = rows;
  batch.padded_columns = columns;
  for (int64_t row = 0; row < rows; ++row) {
    const RealColumns real = real_columns(mask, row, columns);
    const int64_t base = row * columns;
    for (int64_t column = 0; label != nullptr && column < columns; ++column) {
      if (label[base + column] == kNoTarget) continue;
      check_in_vocabulary("labels", label[base + column], row, column, vocab_size);
      // The first column of a row is predicted by nothing; transformers drops its label as well.
      if (column > 0 && (column - 1 < real.first || column - 1 >= real.last)) {
        throw InputError("labels[{}, {}] would be predicted from padding: expected -100 there", row, column);
      }
    }
    for (int64_t column = real.first; column < real.last; ++column) {
      check_in_vocabulary("input_ids", token[base + column], row, column, vocab_size);
      const int64_t place = position == nullptr ? column - real.first : position[base + column];
      if (place < 0) throw InputError("position_ids[{}, {}] is {}: expected 0 or more", row, column, place);
      int64_t target = kNoTarget;
      if (label != nullptr) {
        if (column + 1 < columns) target = label[base + column + 1];
      } else if (column + 1 < real.last) {
        target = token[base + column + 1];
        check_in_vocabulary("input_ids", target, row, column + 1, vocab_size);
      }
      tokens.push_back(token[base + column]);
      positions.push_back(place);
      targets.push_back(target);
      places.push_back(base + column);
    }
    batch.offsets.push_back(static_cast<int64_t>(tokens.size()));
  }
  if (tokens.empty()) throw InputError("attention_mask: no row has a token; expected at least one 1");
  batch.tokens = to_tensor(tokens);
  batch.positions = to_tensor(positions);
  batch.targets = to_tensor(targets);
  batch.padded_places = to_tensor(places);
  return batch;
}

Batch random_batch(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed) {
  Batch batch;
  batch.offsets = {0};
  std::vector<int64_t> positions, places;
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
      places.push_back(static_cast<int64_t>(i) * batch.padded_columns + t);
  }
  at::Generator generator = at::detail::createCPUGenerator(seed);
  batch.tokens = at::randint(vocab_size, {batch.size()}, generator, at::kLong);
  batch.positions = to_tensor(positions);
  batch.targets = at::full({batch.size()}, kNoTarget, at::kLong);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t begin = batch.offsets[i];
    batch.targets.narrow(0, begin, lengths[i] - 1).copy_(batch.tokens.narrow(0, begin + 1, lengths[i] - 1));
  }
  batch.padded_places = to_tensor(places);
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
  const at::Tensor places = at::cat(runs);
  const auto pick = [&](const at::Tensor& per_token) {
    return per_token.defined() ? per_token.index_select(0, places) : at::Tensor();
  };
  selected.tokens = pick(batch.tokens);
  selected.positions = pick(batch.positions);
  selected.targets = pick(batch.targets);
  selected.value_mask = pick(batch.value_mask);
  selected.padded_places = pick(batch.padded_places);
  selected.padded_rows = batch.padded_rows;
  selected.padded_columns = batch.padded_columns;
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
    batches.back().rope_length = rope_length(batch);
  }
  return batches;
}

at::Tensor unpack(const Batch& batch, const at::Tensor& values) {
  std::vector<int64_t> flat = values.sizes().vec();
  flat[0] = batch.padded_rows * batch.padded_columns;
  at::Tensor padded = at::zeros(flat, values.options());
  padded.index_copy_(0, batch.padded_places.to(values.device()), values);
  std::vector<int64_t> shape{batch.padded_rows, batch.padded_columns};
  shape.insert(shape.end(), flat.begin() + 1, flat.end());
  return padded.reshape(shape);
}

}  // namespace streambp
