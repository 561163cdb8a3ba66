#include "verify/equality/batches.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/open_model.h"
#include "verify/checked_device.h"
#include "verify/equality/equality.h"

namespace streambp::verify {
namespace {

constexpr std::string_view kTiny = "-tiny";

/// Unscored prompts, about half of the other targets and, if asked for, positions that skip some numbers.
void scatter(Batch& batch, uint64_t seed, bool positions_skip) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor kept = at::rand({batch.size()}, generator, at::kDouble).lt(0.5);
  batch.targets.masked_fill_(kept.logical_not(), kNoTarget);
  const at::Tensor steps = at::randint(1, 4, {batch.size()}, generator, at::kLong);
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
    const int64_t begin = batch.offsets[i];
    const int64_t length = batch.offsets[i + 1] - begin;
    batch.targets.narrow(0, begin, length / 4).fill_(kNoTarget);
    if (positions_skip)
      batch.positions.narrow(0, begin, length).copy_(steps.narrow(0, begin, length).cumsum(0));
  }
}

/// Rows of documents of these lengths, all rows of one length. Positions start anew or skip some numbers at a
/// document's beginning. Most tokens are labels, first ones of documents included.
Batch packed_batch(const std::vector<std::vector<int64_t>>& rows, int64_t vocab_size, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> position_rows;
  int64_t first = 0;
  for (const std::vector<int64_t>& lengths : rows) {
    std::vector<at::Tensor> documents;
    for (const int64_t length : lengths) {
      documents.push_back(at::arange(first, first + length));
      first = first == 0 ? length + 2 : 0;
    }
    position_rows.push_back(at::cat(documents));
  }
  const at::Tensor positions = at::stack(position_rows);
  const at::Tensor input_ids = equality_tokens(positions.sizes(), vocab_size, generator);
  const at::Tensor left_out = at::rand(positions.sizes(), generator, at::kDouble).lt(0.2);
  return pack(input_ids, {}, input_ids.masked_fill(left_out, kNoTarget), positions, vocab_size);
}

/// random_batch with equality_tokens, scored as they are.
Batch unpadded_batch(const std::vector<int64_t>& lengths, int64_t vocab_size, uint64_t seed) {
  Batch batch = random_batch(lengths, vocab_size, seed);
  at::Generator generator = at::detail::createCPUGenerator(seed + 2);
  batch.tokens = equality_tokens({batch.size()}, vocab_size, generator);
  const at::Tensor next = batch.tokens.roll(-1);
  batch.targets = at::where(batch.targets.eq(kNoTarget), batch.targets, next);
  return batch;
}

}  // namespace

at::Tensor equality_tokens(at::IntArrayRef shape, int64_t vocab_size, at::Generator& generator) {
  const at::Tensor tokens = at::randint(vocab_size, shape, generator, at::kLong);
  return tokens.masked_fill(at::rand(shape, generator, at::kDouble).lt(0.125), kPaddingToken);
}

Batch equality_batch(const std::string& name, int64_t length, int64_t vocab_size, uint64_t seed,
                     bool positions_skip) {
  const int64_t medium = length * 2 / 3 + 1;
  const int64_t small = length / 3 + 1;
  if (name == "single") return unpadded_batch({length}, vocab_size, seed);
  if (name == "three") return unpadded_batch({small, length, medium}, vocab_size, seed);
  if (name == "short") return unpadded_batch({1, length, 1, small, 1}, vocab_size, seed);
  if (name == "masked") {
    Batch batch = unpadded_batch({length, small, medium}, vocab_size, seed);
    scatter(batch, seed + 1, positions_skip);
    return batch;
  }
  if (name == "unscored") {
    Batch batch = unpadded_batch({length, small}, vocab_size, seed);
    batch.targets.fill_(kNoTarget);
    return batch;
  }
  if (name == "packed") return packed_batch({{small, length, 1}, {1, length, small}}, vocab_size, seed);
  throw InputError("batch '{}': expected one of {}", name, fmt::join(equality_batch_names(), ", "));
}

Batch in_one_row(const Batch& packed, int64_t vocab_size) {
  const auto row = [](const at::Tensor& of_tokens) { return of_tokens.unsqueeze(0); };
  // The label of a column is predicted by the column before it.
  const at::Tensor labels = packed.targets.roll(1).index_fill(0, at::zeros({1}, at::kLong), kNoTarget);
  return pack(row(packed.tokens), {}, row(labels), row(packed.positions), vocab_size);
}

Batch repack(const Batch& batch, Side padding, int64_t vocab_size) {
  const auto rows = static_cast<int64_t>(batch.offsets.size()) - 1;
  int64_t columns = 0;
  for (int64_t row = 0; row < rows; ++row)
    columns = std::max(columns, batch.offsets[row + 1] - batch.offsets[row]);
  columns += 2;  // padding in every row
  at::Tensor input_ids = at::full({rows, columns}, vocab_size + 7, at::kLong);
  at::Tensor mask = at::zeros({rows, columns}, at::kLong);
  at::Tensor labels = at::full({rows, columns}, kNoTarget, at::kLong);
  at::Tensor position_ids = at::full({rows, columns}, -999, at::kLong);  // the greatest one counts
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = batch.offsets[row];
    const int64_t length = batch.offsets[row + 1] - begin;
    const int64_t first = padding == Side::kLeft ? columns - length : 0;
    input_ids[row].narrow(0, first, length).copy_(batch.tokens.narrow(0, begin, length));
    mask[row].narrow(0, first, length).fill_(1);
    position_ids[row].narrow(0, first, length).copy_(batch.positions.narrow(0, begin, length));
    // The label of a column is predicted by the column before it; a sequence's last token predicts nothing.
    labels[row].narrow(0, first + 1, length - 1).copy_(batch.targets.narrow(0, begin, length - 1));
  }
  return pack(input_ids, mask, labels, position_ids, vocab_size);
}

std::vector<std::string> equality_families() {
  std::vector<std::string> families;
  for (const std::string& name : preset_names()) {
    if (name.ends_with(kTiny)) families.push_back(name.substr(0, name.size() - kTiny.size()));
  }
  return families;
}

std::string equality_preset(const std::string& family) {
  return family + std::string(kTiny);
}

Config equality_config(const std::string& name, const std::string& changes) {
  if (changes.empty()) return open_config(name);
  if (!is_preset(name)) throw InputError("--config: changes a preset, and {} is none", shown(name));
  nlohmann::json config = nlohmann::json::parse(preset_json(name));
  const nlohmann::json changed = parse_strict_json(changes, "--config");
  if (!changed.is_object()) throw InputError("--config: expected a JSON object, got {}", shown(changed));
  config.update(changed);
  return parse_config(config.dump(), name + " with --config");
}

Model equality_model(const std::string& name, uint64_t seed,
                     const std::function<bool(const std::string&)>& trainable, int64_t more_tokens,
                     const std::string& changes) {
  Model::Placement placement;
  placement.dtype = placement.gradient_dtype = at::kDouble;
  placement.device = checked_device();
  placement.trainable = trainable;
  if (changes.empty() && std::filesystem::is_directory(name)) return open_model(name, placement, seed);
  Config config = equality_config(name, changes);
  config.pad_token_id = kPaddingToken;
  config.vocab_size += more_tokens;
  Model model = Model::random(config, placement, seed);
  for (const auto& parameter : model.parameters()) {
    at::Tensor& value = parameter->value;
    if (is_hash_table(parameter->name)) continue;
    // Convolutions are drawn as large as they are trained: much larger ones would leave SiLU no bend.
    if (parameter->name.ends_with("conv1d.weight") || parameter->name.ends_with("conv.weight")) continue;
    const bool norm = parameter->name.ends_with("norm.weight");
    // Factors of logits: 25 would make of the matrix that mixes streams one of zeros and ones.
    const bool scale = is_of_hyper_connection(parameter->name) && parameter->name.ends_with("scale");
    // Of queries, about 1 too.
    const bool of_queries = parameter->name.ends_with(".softmax_scaling.bias");
    if (norm || scale || of_queries) {
      const bool adds_one =
          model.config().norm_adds_one && !parameter->name.ends_with(".linear_attn.norm.weight");
      const double center = norm && adds_one ? 0.0 : 1.0;
      value.sub_(center).mul_(10.0).add_(center);
    } else if (value.dim() == 1 || parameter->name == "model.embed_tokens.weight") {
      value.mul_(25.0);
    } else {
      value.mul_(50.0 / std::sqrt(static_cast<double>(value.size(1))));
    }
  }
  return model;
}

std::vector<Trainable> trainable_choices(const Config& config) {
  const std::string last_layer = fmt::format("model.layers.{}.", config.num_hidden_layers - 1);
  std::vector<Trainable> choices{
      {"norms", [](const std::string& name) { return name.ends_with("norm.weight"); }},
      {"last layer", [last_layer](const std::string& name) { return name.starts_with(last_layer); }},
      {"embedding", [](const std::string& name) { return name == "model.embed_tokens.weight"; }}};
  if (config.latent.trained_positions)
    choices.push_back({"frequencies", [](const std::string& name) { return name == kTrainedFrequencies; }});
  if (!config.tie_word_embeddings) {
    choices.push_back({"head", [](const std::string& name) { return name == "lm_head.weight"; }});
  }
  return choices;
}

}  // namespace streambp::verify
