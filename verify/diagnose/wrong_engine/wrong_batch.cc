#include "verify/diagnose/wrong_engine/wrong_batch.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "streambp/objective/terms.h"

namespace streambp::verify {
namespace {

int64_t row_count(const Batch& batch) {
  return batch.padded_rows;
}

/// Values [N] on the padded input, [rows, columns], `fill` elsewhere.
at::Tensor padded(const Batch& batch, const at::Tensor& values, double fill) {
  at::Tensor all = at::full({row_count(batch) * batch.padded_columns}, fill, values.options());
  all.index_copy_(0, batch.padded_indices, values);
  return all.view({row_count(batch), batch.padded_columns});
}

/// Of each position of the padded input, what stands `by` columns before it.
at::Tensor moved(const at::Tensor& grid, int64_t by, double fill) {
  const int64_t columns = grid.size(1), kept = std::max<int64_t>(columns - std::abs(by), 0);
  at::Tensor result = at::full_like(grid, fill);
  result.narrow(1, std::max<int64_t>(by, 0), kept).copy_(grid.narrow(1, std::max<int64_t>(-by, 0), kept));
  return result;
}

at::Tensor on_stream(const Batch& batch, const at::Tensor& grid) {
  return grid.flatten().index_select(0, batch.padded_indices);
}

/// Every target, and all that belongs to it, `by` positions later. `first_labels` [N] (may be undefined) are
/// the targets of tokens that have none before them.
void shift_targets(Batch& batch, int64_t by, const at::Tensor& first_labels) {
  const auto shift = [&](const at::Tensor& values, double fill) {
    return on_stream(batch, moved(padded(batch, values, fill), by, fill));
  };
  at::Tensor targets = shift(batch.targets, kNoTarget);
  if (first_labels.defined()) {
    const at::Tensor has_token_before = shift(at::ones({batch.size()}, at::kLong), 0).to(at::kBool);
    targets = at::where(has_token_before, targets, first_labels);
  }
  batch.targets = targets;
  for (auto& [name, values] : batch.token_inputs) values = shift(values, 0);
}

/// A token's log-probabilities are those of the one `by` before it.
void shift_input(Batch& batch, const char* name, int64_t by) {
  const auto found = batch.token_inputs.find(name);
  if (by != 0 && found != batch.token_inputs.end())
    found->second = on_stream(batch, moved(padded(batch, found->second, 0.0), by, 0.0));
}

/// Documents that begin elsewhere, and their positions with them.
void move_documents(Batch& batch, const WrongSettings& settings) {
  if (settings.document_starts.empty()) return;
  batch.offsets = settings.document_starts;
  if (!settings.positions_stay) batch.positions = token_indices(batch, false).in_sequence;
}

/// Every token but a sequence's last has a target: its own, or else the next token.
void score_prompts(Batch& batch) {
  at::Tensor next = at::full_like(batch.tokens, kNoTarget);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i], last = batch.offsets[i + 1] - 1;
    if (last > begin) next.slice(0, begin, last).copy_(batch.tokens.slice(0, begin + 1, last + 1));
  }
  batch.targets = at::where(batch.targets.eq(kNoTarget), next, batch.targets);
}

/// A token whose next one lies in another chunk has no target.
void drop_targets_of_next_chunks(Batch& batch, const Cut& cut) {
  const at::Tensor numbers = chunk_numbers(batch, at::arange(batch.size(), at::kLong), cut);
  const at::Tensor lost = numbers.slice(0, 1).ne(numbers.slice(0, 0, -1));
  batch.targets = batch.targets.clone();
  batch.targets.slice(0, 0, -1).masked_fill_(lost, kNoTarget);
}

/// The batch with its padding among the tokens: rows are sequences, positions go on to both sides.
WrongBatch with_padding(const Batch& batch, const at::Tensor& input_ids, bool scored, bool visible) {
  const int64_t rows = row_count(batch), columns = batch.padded_columns, all = rows * columns;
  const at::Tensor real = padded(batch, at::ones({batch.size()}, at::kLong), 0).to(at::kBool);
  const at::Tensor column = at::arange(columns, at::kLong).expand({rows, columns});
  const at::Tensor ids =
      input_ids.defined() ? input_ids.to(at::kLong) : at::zeros({rows, columns}, at::kLong);

  WrongBatch wrong{batch, real.logical_not().flatten()};
  Batch& whole = wrong.batch;
  whole.tokens = at::where(real, padded(batch, batch.tokens, 0), ids);
  // What positions would be at column 0, by the row's first and last real token.
  const at::Tensor base = padded(batch, batch.positions, 0) - column;
  const at::Tensor first = at::where(real, column, at::full_like(column, columns)).amin(1, true);
  const at::Tensor last = at::where(real, column, at::full_like(column, -1)).amax(1, true);
  const at::Tensor before = base.gather(1, first.clamp_max(columns - 1));
  const at::Tensor after = base.gather(1, last.clamp_min(0));
  const at::Tensor of_padding = column + at::where(column < first, before, after);
  const at::Tensor targets = padded(batch, batch.targets, kNoTarget);
  if (scored) {
    const at::Tensor next = moved(whole.tokens, -1, kNoTarget);
    // A position is scored on a label that is padding, or is padding itself: on the left only where it sees
    // what is before it.
    const at::Tensor at_end = (column >= last).logical_and(last >= 0);
    const at::Tensor changed = visible ? real.logical_not().logical_or(at_end) : at_end;
    whole.targets = at::where(changed, next, targets).flatten();
  } else {
    whole.targets = targets.flatten();
  }
  whole.positions = at::where(real, padded(batch, batch.positions, 0), of_padding).flatten();
  whole.tokens = whole.tokens.flatten();
  for (auto& [name, values] : whole.token_inputs) values = padded(batch, values, 0).flatten();
  if (batch.value_mask.defined())
    whole.value_mask = padded(batch, batch.value_mask.to(at::kLong), 0).to(at::kBool).flatten();
  whole.padded_indices = at::arange(all, at::kLong);
  whole.offsets.clear();
  for (int64_t row = 0; row <= rows; ++row) whole.offsets.push_back(row * columns);
  whole.rope_length = rope_length(batch);
  if (visible) wrong.hidden_key.fill_(false);
  return wrong;
}

/// Values less their mean and, where `kind` says so, over their deviation (with n - 1, as torch and TRL have
/// it).
at::Tensor normalised(const at::Tensor& values, const AdvantageChange& change) {
  if (values.numel() == 0) return values;
  const at::Tensor centred = values - values.mean();
  if (change.kind == AdvantageChange::Kind::kCentred || values.numel() < 2) return centred;
  return centred / (values.std() + change.eps);
}

/// Sequences that take what is another's; of advantages those that are alike in a sequence.
void exchange_rows(Batch& batch, const WrongSettings& settings) {
  if (!settings.reference_order.empty()) {
    at::Tensor& sums = batch.sequence_inputs.at(inputs::kReferenceSums);
    sums = sums.index_select(0, at::tensor(at::ArrayRef<int64_t>(settings.reference_order), at::kLong));
  }
  if (settings.advantage_order.empty()) return;
  const at::Tensor given = batch.token_inputs.at(inputs::kAdvantages);
  at::Tensor exchanged = given.clone();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const auto other = static_cast<size_t>(settings.advantage_order[i]);
    const at::Tensor others = batch.targets.slice(0, batch.offsets[other], batch.offsets[other + 1]);
    const at::Tensor scored = others.ne(kNoTarget).nonzero();
    if (scored.numel() == 0) continue;
    exchanged.slice(0, batch.offsets[i], batch.offsets[i + 1])
        .fill_(given[batch.offsets[other] + scored[0].item<int64_t>()]);
  }
  batch.token_inputs[inputs::kAdvantages] = exchanged;
}

}  // namespace

WrongBatch wrong_batch(const Batch& batch, const at::Tensor& input_ids, const at::Tensor& labels,
                       const WrongSettings& settings) {
  WrongBatch wrong{batch, {}};
  if (settings.padding_visible || settings.padding_scored || settings.padding_routed ||
      settings.padding_in_states || settings.padding_runs) {
    // Of one layer that sees it: no other does.
    wrong = with_padding(batch, input_ids, settings.padding_scored,
                         settings.padding_visible && settings.only_layer < 0);
  } else {
    wrong.hidden_key = at::zeros({batch.size()}, at::kBool);
  }
  if (settings.prompt_scored) score_prompts(wrong.batch);
  if (settings.labels_of_chunk.size > 0) drop_targets_of_next_chunks(wrong.batch, settings.labels_of_chunk);
  if (settings.target_shift != 0) {
    at::Tensor first_labels;
    if (settings.first_label)
      first_labels = labels.defined() ? on_stream(wrong.batch, labels.to(at::kLong)) : wrong.batch.tokens;
    shift_targets(wrong.batch, settings.target_shift, first_labels);
    if (settings.no_last_column)
      wrong.batch.targets.masked_fill_(
          token_indices(wrong.batch, false).column.eq(wrong.batch.padded_columns - 1), kNoTarget);
  }
  if (wrong.batch.token_inputs.contains(inputs::kAdvantages))
    wrong.batch.token_inputs[inputs::kAdvantages] = wrong_advantages(wrong.batch, settings);
  exchange_rows(wrong.batch, settings);
  shift_input(wrong.batch, inputs::kOldLogProbabilities, settings.old_shift);
  shift_input(wrong.batch, inputs::kReferenceLogProbabilities, settings.reference_shift);
  move_documents(wrong.batch, settings);
  return wrong;
}

at::Tensor wrong_advantages(const Batch& batch, const WrongSettings& settings) {
  const AdvantageChange& change = settings.advantages;
  at::Tensor advantages = batch.token_inputs.at(inputs::kAdvantages).clone();
  const auto sequences = static_cast<int64_t>(batch.offsets.size()) - 1;
  std::vector<at::Tensor> scored;  // indices of each sequence
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t begin = batch.offsets[static_cast<size_t>(i)],
                  end = batch.offsets[static_cast<size_t>(i) + 1];
    scored.push_back(batch.targets.slice(0, begin, end).ne(kNoTarget).nonzero().squeeze(1) + begin);
  }
  if (change.kind == AdvantageChange::Kind::kNone) return advantages;
  const int64_t group = change.group > 0 ? change.group : sequences;
  for (int64_t begin = 0; begin < sequences; begin += group) {
    std::vector<at::Tensor> rows;
    for (int64_t i = begin; i < std::min(begin + group, sequences); ++i) {
      if (scored[static_cast<size_t>(i)].numel() > 0) rows.push_back(scored[static_cast<size_t>(i)]);
    }
    if (rows.empty()) continue;
    if (change.over_tokens) {
      const at::Tensor all = at::cat(rows);
      advantages.index_copy_(0, all, normalised(advantages.index_select(0, all), change));
      continue;
    }
    std::vector<at::Tensor> of_rows;
    for (const at::Tensor& row : rows) of_rows.push_back(advantages.index_select(0, row).mean());
    const at::Tensor changed = normalised(at::stack(of_rows), change);
    for (size_t i = 0; i < rows.size(); ++i)
      advantages.index_fill_(0, rows[i], changed[static_cast<int64_t>(i)]);
  }
  return advantages;
}

TokenIndices token_indices(const Batch& batch, bool ignores_documents) {
  const at::Tensor column = batch.padded_indices.remainder(batch.padded_columns);
  const at::Tensor row = batch.padded_indices.div(batch.padded_columns, "floor");
  at::Tensor sequence = at::empty_like(row);
  at::Tensor in_sequence = at::empty_like(row);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i], length = batch.offsets[i + 1] - begin;
    sequence.narrow(0, begin, length).fill_(static_cast<int64_t>(i));
    in_sequence.narrow(0, begin, length).copy_(at::arange(length, at::kLong));
  }
  TokenIndices indices{row, column, sequence, in_sequence};
  if (ignores_documents) {
    indices.sequence = row;
    indices.in_sequence = column - left_padding(indices);
  }
  return indices;
}

at::Tensor left_padding(const TokenIndices& indices) {
  if (indices.row.numel() == 0) return indices.row;
  at::Tensor first =
      at::full({indices.row.max().item<int64_t>() + 1}, std::numeric_limits<int64_t>::max(), at::kLong);
  first.scatter_reduce_(0, indices.row, indices.column, "amin");
  return first.index_select(0, indices.row);
}

at::Tensor chunk_starts(const TokenIndices& indices, const Cut& cut) {
  const auto start_by = [&](const at::Tensor& numbers) {
    const at::Tensor start = numbers.div(cut.size, "floor") * cut.size;
    return (start - (numbers - indices.in_sequence)).clamp_min(0);
  };
  switch (cut.along) {
    case Cut::Along::kColumns:
      return start_by(indices.column);
    case Cut::Along::kStream:
      return start_by(at::arange(indices.in_sequence.size(0), at::kLong));
    default:
      return start_by(indices.in_sequence);
  }
}

std::vector<int64_t> restarted(const std::vector<int64_t>& offsets, const TokenIndices& indices,
                               const Cut& cut) {
  if (cut.size == 0) return offsets;
  const at::Tensor begins = chunk_starts(indices, cut).eq(indices.in_sequence).nonzero().squeeze(1);
  std::vector<int64_t> all(begins.data_ptr<int64_t>(), begins.data_ptr<int64_t>() + begins.numel());
  all.insert(all.end(), offsets.begin(), offsets.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

at::Tensor balanced_positions(const Batch& batch, int64_t ranks) {
  const int64_t columns = batch.padded_columns, chunks = 2 * ranks;
  at::Tensor positions = at::empty({columns}, at::kLong);
  int64_t next = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const int64_t chunk : {rank, chunks - 1 - rank}) {
      const int64_t begin = columns * chunk / chunks, end = columns * (chunk + 1) / chunks;
      positions.slice(0, begin, end).copy_(at::arange(next, next + end - begin, at::kLong));
      next += end - begin;
    }
  }
  return positions.index_select(0, token_indices(batch, false).column);
}

at::Tensor prompt_tokens(const Batch& batch) {
  at::Tensor prompt = at::zeros({batch.size()}, at::kBool);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i];
    const at::Tensor scored = batch.targets.slice(0, begin, batch.offsets[i + 1]).ne(kNoTarget).nonzero();
    // The logits of a prompt's last token are the first that are scored.
    if (scored.numel() > 0) prompt.slice(0, begin, begin + scored[0].item<int64_t>() + 1).fill_(true);
  }
  return prompt;
}

at::Tensor chunk_numbers(const Batch& batch, const at::Tensor& scored, const Cut& cut) {
  const TokenIndices indices = token_indices(batch, false);
  const auto of_scored = [&](const at::Tensor& numbers) {
    return numbers.index_select(0, scored).div(cut.size, "floor");
  };
  switch (cut.along) {
    case Cut::Along::kSequence: {
      // Chunks of different sequences are different chunks.
      const at::Tensor chunk = indices.in_sequence.div(cut.size, "floor");
      return (indices.sequence * batch.size() + chunk).index_select(0, scored);
    }
    case Cut::Along::kColumns:
      return of_scored(indices.column);
    case Cut::Along::kStream:
      return scored.div(cut.size, "floor");
    case Cut::Along::kFlat:
      return of_scored(batch.padded_indices);
    case Cut::Along::kScored:
      return at::arange(scored.size(0), at::kLong).div(cut.size, "floor");
    case Cut::Along::kRows:
      return of_scored(indices.row);
  }
  throw std::logic_error("no such cut");
}

at::Tensor normaliser_weights(const Batch& batch, const at::Tensor& scored, const Cut& cut) {
  const at::Tensor has_target = batch.targets.index_select(0, scored).ne(kNoTarget).to(at::kDouble);
  const auto [unique, inverse, unused] = at::_unique2(chunk_numbers(batch, scored, cut), true, true);
  const at::Tensor counts = at::zeros({unique.size(0)}, at::kDouble).index_add_(0, inverse, has_target);
  const at::Tensor chunks = counts.gt(0).sum().to(at::kDouble);
  return has_target.sum() / (chunks * counts.index_select(0, inverse).clamp_min(1.0));
}

}  // namespace streambp::verify
