#include "verify/reference_bridge.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "streambp/model/config/family.h"
#include "streambp/model/lora/peft_name.h"
#include "streambp/model/scored.h"
#include "verify/reference_given.h"

namespace streambp::verify {
namespace {

/// Of several matrices one under another.
reference::Matrix matrix_of(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kCPU, at::kDouble).contiguous();
  const int64_t rows = wide.numel() / wide.size(-1);
  return Eigen::Map<const reference::Matrix>(wide.const_data_ptr<double>(), rows, wide.numel() / rows);
}

std::vector<int64_t> integers(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kCPU, at::kLong).contiguous();
  return {data.const_data_ptr<int64_t>(), data.const_data_ptr<int64_t>() + data.numel()};
}

/// The reference drops PEFT's prefix, and calls a critic's head what it calls any value head.
std::string reference_name(std::string name) {
  constexpr std::string_view kPeft = kPeftPrefix, kBase = ".base_layer.bias";
  if (name.starts_with(kPeft)) name.erase(0, kPeft.size());
  if (name.ends_with(kBase)) name = name.substr(0, name.size() - kBase.size()) + ".bias";
  return name == "score.weight" ? "value_head.weight" : name;
}

/// The reference's name of an adapter's module.
std::string reference_module(const LoraTarget& target) {
  if (target.kind == LoraTargetKind::kGateUpExperts) return target.module + ".gate_up_proj";
  if (target.kind == LoraTargetKind::kDownExperts) return target.module + ".down_proj";
  return target.module;
}

/// Adapters, rows that are trained apart, and heads that no longer are the embedding.
void add_adapters(const Model& model, const LoraConfig& lora, ReferenceModel& same) {
  for (const LoraTarget& target : lora_targets(model.config(), lora)) {
    const std::string module = reference_module(target);
    same.config.adapters[module] = {static_cast<int>(target.rank), target.scale, lora.lora_bias};
    same.names[target.a] = module + ".lora_A.weight";
    same.names[target.b] = module + ".lora_B.weight";
  }
  const LoraExtras extras = lora_extras(model.config(), lora);
  for (const auto& [name, tokens] : extras.rows)
    same.config.trained_rows[name.substr(0, name.rfind('.'))] = {tokens.begin(), tokens.end()};
  if (!model.config().tie_word_embeddings) return;
  const bool is_split = std::any_of(extras.saved.begin(), extras.saved.end(), [](const std::string& name) {
    return name == "model.embed_tokens.weight" || name == "lm_head.weight";
  });
  if (!is_split) return;
  same.config.tie_word_embeddings = false;
  same.weights["lm_head.weight"] = matrix_of(model.head().weight->value);
}

}  // namespace

ReferenceModel reference_model(const Model& model, const LoraConfig* lora) {
  ReferenceModel same{reference_config(model.config()), {}, {}};
  same.config.has_value_head = model.has_value_head();
  if (lora != nullptr) add_adapters(model, *lora, same);
  for (const auto& parameter : model.parameters()) {
    const std::string& name =
        same.names.emplace(parameter->name, reference_name(parameter->name)).first->second;
    // What is trained stands for the base's own, which is there too.
    if (is_peft_name(parameter->name)) {
      same.weights[name] = matrix_of(parameter->value);
    } else {
      same.weights.emplace(name, matrix_of(parameter->value));
    }
  }
  return same;
}

namespace {

/// Where the sequences of a batch begin, its end last. Of packed rows that is worked out anew from the
/// indices and positions of their tokens: in each row a document ends where the next position is not the one
/// after.
std::vector<int64_t> sequence_bounds(const Batch& batch) {
  if (!batch.packed) return batch.offsets;
  const std::vector<int64_t> indices = integers(batch.padded_indices);
  const std::vector<int64_t> positions = integers(batch.positions);
  std::vector<int64_t> bounds = {0};
  for (std::size_t t = 1; t < indices.size(); ++t) {
    const bool same_row = indices[t] == indices[t - 1] + 1 && indices[t] % batch.padded_columns != 0;
    if (!same_row || positions[t] - positions[t - 1] != 1) bounds.push_back(static_cast<int64_t>(t));
  }
  bounds.push_back(static_cast<int64_t>(indices.size()));
  return bounds;
}

}  // namespace

std::vector<reference::Sequence> reference_sequences(const Batch& batch, const Config& config) {
  const std::vector<int64_t> tokens = integers(batch.tokens);
  const std::vector<int64_t> positions = integers(batch.positions);
  const std::vector<int64_t> targets = integers(batch.targets);
  const at::Tensor value_mask = batch.value_mask;
  std::vector<reference::Sequence> sequences;
  const std::vector<int64_t> bounds = sequence_bounds(batch);
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const auto begin = static_cast<std::size_t>(bounds[i]);
    const auto end = static_cast<std::size_t>(bounds[i + 1]);
    reference::Sequence sequence;
    for (std::size_t t = begin; t < end; ++t) {
      sequence.tokens.push_back(static_cast<int>(tokens[t]));
      sequence.positions.push_back(static_cast<double>(positions[t]));
      sequence.targets.push_back(targets[t] == kNoTarget ? reference::kNoTarget
                                                         : static_cast<int>(targets[t]));
      if (value_mask.defined()) {
        sequence.valued.push_back(value_mask[static_cast<int64_t>(t)].item<bool>());
      }
    }
    sequence.padding = {static_cast<double>(rope_length(batch)) - 1.0};
    const auto own = [&](const at::Tensor& of_tokens) {
      return of_tokens.slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(end));
    };
    if (batch.router_indices.defined()) sequence.experts = given_experts(own(batch.router_indices), config);
    if (batch.indexer_indices.defined() && end > begin)
      sequence.picks =
          given_picks(own(batch.indexer_indices),
                      batch.padded_indices[bounds[i]].item<int64_t>() % batch.padded_columns, config);
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

reference::Matrix reference_logits(const Model& model, const Batch& batch) {
  const ReferenceModel same = reference_model(model);
  reference::Tape tape;
  reference::Parameters parameters;
  for (const auto& [name, weight] : same.weights) parameters.emplace(name, tape.leaf(weight));
  reference::Matrix all(batch.size(), same.config.vocab_size);
  int64_t begin = 0;
  const std::vector<reference::Sequence> sequences = reference_sequences(batch, model.config());
  const double length = reference::batch_length(sequences);
  for (const reference::Sequence& sequence : sequences) {
    if (sequence.tokens.empty()) continue;
    const reference::HiddenStates hidden =
        reference::hidden_states(same.config, parameters, sequence.tokens, sequence.positions, length);
    const reference::Var logits = reference::logits(same.config, parameters, hidden.states);
    all.middleRows(begin, logits.rows()) = logits.value();
    begin += logits.rows();
  }
  return all(integers(scored_indices(batch)), Eigen::all);
}

Tensors tensors_of(const reference::Weights& gradients, const Model& model,
                   const std::map<std::string, std::string>& names) {
  Tensors tensors;
  for (const auto& parameter : model.parameters()) {
    if (!parameter->trainable()) continue;
    const auto found = gradients.find(names.at(parameter->name));
    if (found == gradients.end()) throw std::invalid_argument("reference: no gradient of " + parameter->name);
    const reference::Matrix& matrix = found->second;
    at::Tensor tensor = at::empty(parameter->value.sizes(), at::kDouble);
    if (tensor.numel() != matrix.size()) {
      throw std::invalid_argument("reference: another size of the gradient of " + parameter->name);
    }
    std::copy_n(matrix.data(), matrix.size(), tensor.mutable_data_ptr<double>());
    tensors.emplace(parameter->name, std::move(tensor));
  }
  return tensors;
}

}  // namespace streambp::verify
