#include "streambp/data/padded_tensors.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "streambp/data/given_indices.h"
#include "streambp/error.h"
#include "streambp/model/config/rope_frequencies.h"
#include "streambp/model/files/strict_json.h"

namespace streambp {
namespace {

// What DataCollatorWithFlattening of transformers and TRL's collators write in addition to the tokens.
// router_indices and indexer_indices are what an inference engine reports of the experts of a mixture
// (replayed routing) and of the rows that sparse attention has seen.
const std::vector<std::string> kOfAll = {"input_ids",     "attention_mask", "position_ids", "cu_seq_lens_q",
                                         "cu_seq_lens_k", "max_length_q",   "max_length_k", "seq_idx",
                                         kRouterIndices,  kIndexerIndices};

// TRL 1.16: trainer/sft_trainer.py, dpo_trainer.py and experimental/utils.py (DPODataCollatorWithPadding,
// CPO's and ORPO's; prompt_ is in its chosen_ and rejected_ once more), kto_trainer.py (and role, which holds
// label and the rows of the KL estimate in one), grpo_trainer.py, experimental/ppo (whose rewards are in
// advantages and returns already).
const std::map<Layout, std::vector<std::string>> kOfLayouts = {
    {Layout::kLabels, {"labels"}},
    {Layout::kPairs,
     {"completion_mask", "ref_chosen_logps", "ref_rejected_logps", "chosen_input_ids",
      "chosen_attention_mask", "chosen_labels", "rejected_input_ids", "rejected_attention_mask",
      "rejected_labels", "prompt_input_ids", "prompt_attention_mask"}},
    {Layout::kRanked, {"margin", "value_head.weight"}},
    {Layout::kTexts, {}},
    {Layout::kLabelled,
     {"completion_mask", "role", "label", "ref_logps", "KL_input_ids", "KL_attention_mask",
      "KL_completion_mask", "ref_KL_logps"}},
    {Layout::kCompletions,
     {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages",
      "old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps", "importance_sampling_ratio",
      "old_logps"}},
    {Layout::kResponses,
     {"responses", "response_mask", "value_mask", "old_logprobs", "advantages", "old_values", "returns",
      "ref_logprobs", "rewards", "value_head.weight"}}};

void require_shape(const at::Tensor& tensor, const std::string& name, at::IntArrayRef shape) {
  if (tensor.sizes() == shape) return;
  throw InputError("{}: expected shape [{}], got [{}]", name, fmt::join(shape, ", "),
                   fmt::join(tensor.sizes(), ", "));
}

/// Rows [b, t] padded with zeros up to `columns`.
at::Tensor padded_right(const at::Tensor& rows, int64_t columns) {
  return at::constant_pad_nd(rows, {0, columns - rows.size(1)});
}

/// Whether `kind` has a divisor that num_items_in_batch stands for, and its name.
std::string items_option(const ObjectiveKind& kind) {
  for (const Option& option : kind.options) {
    if (option.name == "divisor" || option.name == kNumItemsInBatch) return option.name;
  }
  return "";
}

}  // namespace

std::vector<std::string> known_tensors(const ObjectiveKind& kind) {
  std::vector<std::string> names = kOfAll;
  const std::vector<std::string>& more = kOfLayouts.at(kind.layout);
  names.insert(names.end(), more.begin(), more.end());
  if (!items_option(kind).empty()) names.emplace_back(kNumItemsInBatch);
  return names;
}

void refuse_unknown(const ObjectiveKind& kind, const std::vector<std::string>& names,
                    const std::string& prefix) {
  const std::vector<std::string> known = known_tensors(kind);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw InputError("tensor '{}' is none of {}'s: expected {}", prefix + name, kind.name,
                     fmt::join(known, ", "));
  }
}

PaddedTensors::PaddedTensors(std::map<std::string, at::Tensor> tensors, const std::string& prefix,
                             const ObjectiveKind& kind, FirstLabels first_labels, Documents documents)
    : tensors_(std::move(tensors)), prefix_(prefix), kind_(kind), first_labels_(first_labels) {
  if (kind.layout == Layout::kCompletions && has("prompt_ids")) join_prompts_and_completions();
  if (kind.layout == Layout::kPairs && has("chosen_input_ids")) join_pairs();
  input_ids_ = tensor("input_ids");
  if (kind.layout == Layout::kLabelled && has("label")) {
    join_rows_and_estimates();
    input_ids_ = tensor("input_ids");
  }
  attention_mask_ = optional("attention_mask");
  position_ids_ = optional("position_ids");
  // Masks are laid over input_ids before pack() has seen it.
  if (input_ids_.dim() != 2 || input_ids_.numel() == 0 ||
      !at::isIntegralType(input_ids_.scalar_type(), true)) {
    throw InputError("input_ids: expected integers [rows, columns] with at least one token, got {} [{}]",
                     c10::toString(input_ids_.scalar_type()), fmt::join(input_ids_.sizes(), ", "));
  }
  input_ids_ = input_ids_.to(at::kLong);
  if (attention_mask_.defined()) require_shape(attention_mask_, "attention_mask", {rows(), columns()});
  if (documents == Documents::kFlash) follow_flash_attention();
}

/// Has an attention_mask of ones where flash attention runs each row as one sequence, and none where it runs
/// documents: pack() tells them apart without a mask alone.
void PaddedTensors::follow_flash_attention() {
  const bool padded = attention_mask_.defined() && attention_mask_.eq(0).any().item<bool>();
  if (padded || !position_ids_.defined() || columns() < 2) return;
  const at::Tensor positions = integers("position_ids");
  if (positions.size(1) != columns()) return;  // pack() says so
  const at::Tensor later = positions.narrow(1, 1, columns() - 1);
  const at::Tensor jumps = later.ne(positions.narrow(1, 0, columns() - 1) + 1), starts = later.eq(0);
  if (!jumps.any().item<bool>()) return;
  if (rows() > 1 || !starts.any().item<bool>()) {
    attention_mask_ = at::ones({rows(), columns()}, at::kLong);
    return;
  }
  if (!starts.equal(jumps)) {
    const int64_t column = starts.ne(jumps).nonzero()[0][1].item<int64_t>() + 1;
    throw InputError(
        "position_ids: column {} is {}: flash attention begins a document at 0 alone, expected positions "
        "that count from 0 in each document, or --documents sdpa",
        column, positions[0][column].item<int64_t>());
  }
  if (positions[0][0].item<int64_t>() != 0)
    throw InputError("position_ids: column 0 is {}, expected 0, where flash attention begins a document",
                     positions[0][0].item<int64_t>());
  attention_mask_ = at::Tensor();
}

/// As GRPOTrainer._compute_loss does: prompts, then completions, each with their mask.
void PaddedTensors::join_prompts_and_completions() {
  if (has("input_ids") || has("attention_mask"))
    throw InputError(
        "prompt_ids: given together with input_ids or attention_mask, expected one or the other");
  const auto side_by_side = [&](const char* prompts, const char* completions) {
    const at::Tensor first = integers(prompts), second = integers(completions);
    if (first.size(0) != second.size(0))
      throw InputError("{}: {} rows, expected {}, as {} has", completions, second.size(0), first.size(0),
                       prompts);
    return at::cat({first, second}, 1);
  };
  tensors_["input_ids"] = side_by_side("prompt_ids", "completion_ids");
  tensors_["attention_mask"] = side_by_side("prompt_mask", "completion_mask");
}

/// As concatenated_inputs of CPOTrainer and ORPOTrainer does, with labels that are tokens or -100 as a mask.
void PaddedTensors::join_pairs() {
  for (const char* name : {"input_ids", "attention_mask", "completion_mask", "position_ids"}) {
    if (has(name))
      throw InputError("chosen_input_ids: given together with {}, expected one or the other", name);
  }
  const int64_t columns =
      std::max(integers("chosen_input_ids").size(1), integers("rejected_input_ids").size(1));
  const auto read = [&](const std::string& side, const std::string& name) {
    require_shape(integers(side + name), side + name, integers(side + "input_ids").sizes());
    return integers(side + name);
  };
  std::map<std::string, std::vector<at::Tensor>> rows;
  for (const std::string side : {"chosen_", "rejected_"}) {
    const at::Tensor ids = integers(side + "input_ids"), labels = read(side, "labels");
    const at::Tensor is_scored = labels.ne(kNoTarget), wrong = (is_scored & labels.ne(ids)).nonzero();
    if (wrong.size(0) > 0) {
      const auto row = wrong[0][0].item<int64_t>(), column = wrong[0][1].item<int64_t>();
      throw InputError("{}labels[{}, {}] is {}, expected -100 or input_ids' {}", side, row, column,
                       labels[row][column].item<int64_t>(), ids[row][column].item<int64_t>());
    }
    rows["input_ids"].push_back(padded_right(ids, columns));
    rows["attention_mask"].push_back(padded_right(read(side, "attention_mask"), columns));
    rows["completion_mask"].push_back(padded_right(is_scored.to(at::kLong), columns));
  }
  if (rows["input_ids"][0].size(0) != rows["input_ids"][1].size(0))
    throw InputError("rejected_input_ids: {} rows, expected {}, as chosen_input_ids has",
                     rows["input_ids"][1].size(0), rows["input_ids"][0].size(0));
  for (const auto& [name, sides] : rows) tensors_[name] = at::cat(sides);
}

/// The rows of KTOTrainer and, where they are there, those of its KL estimate below them.
void PaddedTensors::join_rows_and_estimates() {
  if (has("role")) throw InputError("label: given together with role, expected one or the other");
  const at::Tensor labels = numbers("label", {integers("input_ids").size(0)});
  if (!has("KL_input_ids")) {
    tensors_["role"] = labels;
    return;
  }
  if (has("position_ids"))
    throw InputError(
        "position_ids: given together with KL_input_ids, which have none; expected neither to have any");
  for (const std::string prefix : {"", "KL_"}) {
    const at::Tensor ids = integers(prefix + "input_ids");
    // Of no rows, they can have any number of columns, to which the others would be padded.
    if (ids.numel() == 0)
      throw InputError("{}input_ids: expected at least one token, got [{}]", prefix,
                       fmt::join(ids.sizes(), ", "));
    for (const char* mask : {"attention_mask", "completion_mask"})
      require_shape(integers(prefix + mask), prefix + mask, ids.sizes());
  }
  const int64_t columns = std::max(integers("input_ids").size(1), integers("KL_input_ids").size(1));
  const auto below = [&](const std::string& name) {
    return at::cat({padded_right(integers(name), columns), padded_right(integers("KL_" + name), columns)});
  };
  std::map<std::string, at::Tensor> joined;
  for (const char* name : {"input_ids", "attention_mask", "completion_mask"}) joined[name] = below(name);
  const int64_t estimates = joined["input_ids"].size(0) - labels.size(0);
  joined["role"] = at::cat({labels, at::full({estimates}, 2.0, at::kDouble)});
  if (has("ref_logps") || has("ref_KL_logps")) {
    joined["ref_logps"] =
        at::cat({numbers("ref_logps", labels.sizes()), numbers("ref_KL_logps", {estimates})});
  }
  // Each kind runs in a pass of its own, as wide as its rows.
  const at::Tensor widths =
      at::full({labels.size(0) + estimates}, integers("KL_input_ids").size(1), at::kDouble);
  widths.slice(0, 0, labels.size(0)).fill_(integers("input_ids").size(1));
  for (auto& [name, tensor] : joined) tensors_[name] = std::move(tensor);
  tensors_[kPassColumns] = widths;
}

at::Tensor PaddedTensors::optional(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? found->second : at::Tensor();
}

at::Tensor PaddedTensors::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw InputError("no tensor {}", shown(nlohmann::json(prefix_ + name)));
  return found->second;
}

bool PaddedTensors::has(const std::string& name) const {
  return tensors_.contains(name);
}

at::Tensor PaddedTensors::integers(const std::string& name) const {
  const at::Tensor read = tensor(name);
  if (read.dim() != 2 || !at::isIntegralType(read.scalar_type(), /*includeBool=*/true)) {
    throw InputError("{}: expected integers [rows, columns], got {} [{}]", name,
                     c10::toString(read.scalar_type()), fmt::join(read.sizes(), ", "));
  }
  return read.to(at::kLong);
}

at::Tensor PaddedTensors::numbers(const std::string& name, at::IntArrayRef shape) const {
  const at::Tensor read = tensor(name);
  require_shape(read, name, shape);
  // Of numbers for each token only those count whose mask is 1.
  if (shape.size() == 1) require_finite(read, name);
  return read.to(at::kDouble);
}

void PaddedTensors::require_finite(const at::Tensor& values, const std::string& name) {
  const at::Tensor wrong = values.isfinite().logical_not().nonzero();
  if (wrong.size(0) == 0) return;
  const auto row = wrong[0][0].item<int64_t>();
  if (values.dim() == 1)
    throw InputError("{}: row {} is {}, expected a finite number", name, row, values[row].item<double>());
  const auto column = wrong[0][1].item<int64_t>();
  throw InputError("{}: row {}, column {} of input_ids is {}, expected a finite number", name, row, column,
                   values[row][column].item<double>());
}

double PaddedTensors::scalar(const std::string& name) const {
  const at::Tensor read = tensor(name);
  if (read.numel() != 1 || !std::isfinite(read.to(at::kDouble).item<double>()))
    throw InputError("{}: expected one finite number, got shape [{}]", name, fmt::join(read.sizes(), ", "));
  return read.to(at::kDouble).item<double>();
}

int64_t PaddedTensors::width(const std::string& name) const {
  const at::Tensor read = tensor(name);
  if (read.dim() != 2 || read.size(1) < 1 || read.size(1) > columns()) {
    throw InputError("{}: expected shape [{}, 1 to {}], got [{}]", name, rows(), columns(),
                     fmt::join(read.sizes(), ", "));
  }
  return read.size(1);
}

at::Tensor PaddedTensors::mask(const std::string& name, int64_t width) const {
  const at::Tensor read = tensor(name);
  require_shape(read, name, {rows(), width});
  if (!at::isIntegralType(read.scalar_type(), /*includeBool=*/true) ||
      !(read.eq(0) | read.eq(1)).all().item<bool>()) {
    throw InputError("{}: expected integers 0 and 1", name);
  }
  return last_columns(read.to(at::kBool));
}

at::Tensor PaddedTensors::last_columns(const at::Tensor& values) const {
  return at::constant_pad_nd(values, {columns() - values.size(1), 0});
}

at::Tensor PaddedTensors::labels(const at::Tensor& mask, const std::string& name) const {
  require_real(mask, 0, name, "selects padding, expected 0 where attention_mask is 0");
  if (first_labels_ == FirstLabels::kRefuse) {
    require_real(
        moved(mask), 1, name,
        "selects a token that padding would predict, expected 0, or --first-labels ignore to drop it");
  }
  return at::where(mask, input_ids_, at::full_like(input_ids_, kNoTarget));
}

at::Tensor PaddedTensors::moved(const at::Tensor& of_tokens) const {
  return at::constant_pad_nd(of_tokens.narrow(1, 1, columns() - 1), {0, 1});
}

at::Tensor PaddedTensors::on_stream(const Batch& batch, const at::Tensor& of_tokens) const {
  return moved(of_tokens).flatten().index_select(0, batch.padded_indices);
}

void PaddedTensors::require_real(const at::Tensor& flags, int64_t moved_by, const std::string& name,
                                 const char* wrong) const {
  if (!attention_mask_.defined()) return;
  const at::Tensor wrong_at = (flags & attention_mask_.eq(0)).nonzero();
  if (wrong_at.size(0) == 0) return;
  throw InputError("{}: row {}, column {} of input_ids {}", name, wrong_at[0][0].item<int64_t>(),
                   wrong_at[0][1].item<int64_t>() + moved_by, wrong);
}

Batch PaddedTensors::packed(const at::Tensor& labels, int64_t vocab_size) const {
  // Without position_ids transformers counts columns, those of padding too (arange in every model's forward).
  const bool counts_columns = !position_ids_.defined() && attention_mask_.defined();
  const at::Tensor positions = counts_columns ? at::arange(columns()).unsqueeze(0) : position_ids_;
  Batch batch = pack(input_ids_, attention_mask_, labels, positions, vocab_size, first_labels_);
  require_documents(batch);
  const auto read_indices = [&](const char* name, at::Tensor& of_tokens) {
    if (has(name)) of_tokens = read_given_indices(tensor(name), prefix_, name, batch);
  };
  read_indices(kRouterIndices, batch.router_indices);
  read_indices(kIndexerIndices, batch.indexer_indices);
  if (const std::string option = items_option(kind_); !option.empty() && has(kNumItemsInBatch))
    batch.scalar_inputs[option] = scalar(kNumItemsInBatch);
  if (!batch.packed || kind_.layout == Layout::kLabels) return batch;

  const bool may_stand_for_rows = kind_.layout == Layout::kPairs || kind_.layout == Layout::kLabelled;
  if (!may_stand_for_rows || rows() > 1) {
    throw InputError(
        "position_ids: rows of several documents (no attention_mask, and positions that start anew); {} "
        "scores "
        "whole rows, expected {}",
        kind_.name,
        may_stand_for_rows ? "one row whose documents stand for them"
                           : "attention_mask or one document a row");
  }
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const at::Tensor targets = batch.targets.slice(0, batch.offsets[i], batch.offsets[i + 1]);
    if (targets.eq(kNoTarget).all().item<bool>())
      throw InputError("completion_mask: document {} of the row has no completion token", i);
  }
  if (batch.targets_across_documents > 0)
    throw InputError(
        "completion_mask: selects a document's first token, which nothing in it predicts; expected 0");
  return batch;
}

/// That what the file says of documents agrees with position_ids.
void PaddedTensors::require_documents(const Batch& batch) const {
  std::vector<int64_t> begins, lengths;
  const int64_t* const index = batch.padded_indices.const_data_ptr<int64_t>();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    if (batch.offsets[i] == batch.offsets[i + 1]) continue;  // a row of padding: no document of it begins
    begins.push_back(index[batch.offsets[i]]);
    lengths.push_back(batch.offsets[i + 1] - batch.offsets[i]);
  }
  const auto refuse = [](const std::string& name, const std::string& expected) {
    throw InputError("{}: not the documents of position_ids, expected {}", name, expected);
  };
  for (const std::string name :
       {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}) {
    if (!has(name)) continue;
    if (attention_mask_.defined() || !position_ids_.defined()) {
      throw InputError(
          "{}: expected position_ids and no attention_mask with it, which tell documents apart "
          "whatever attention runs",
          name);
    }
    if (name.starts_with("cu_seq")) {
      std::vector<int64_t> bounds = begins;
      bounds.push_back(rows() * columns());
      at::Tensor given = tensor(name).to(at::kLong).flatten();
      if (!given.equal(at::tensor(at::ArrayRef<int64_t>(bounds), at::kLong)))
        refuse(name, fmt::format("[{}]", fmt::join(bounds, ", ")));
    } else if (name.starts_with("max_length")) {
      const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
      if (scalar(name) < static_cast<double>(longest)) refuse(name, fmt::format("{} or more", longest));
    } else {
      const at::Tensor of_row = integers(name);
      require_shape(of_row, name, {rows(), columns()});
      at::Tensor changes = at::ones({rows(), columns()}, at::kBool);
      changes.narrow(1, 1, columns() - 1)
          .copy_(of_row.narrow(1, 1, columns() - 1).ne(of_row.narrow(1, 0, columns() - 1)));
      if (!changes.flatten().nonzero().flatten().equal(at::tensor(at::ArrayRef<int64_t>(begins), at::kLong)))
        refuse(name, "another number at each document's first token");
    }
  }
}

}  // namespace streambp
