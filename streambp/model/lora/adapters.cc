// The parts that training adds to a model: LoRA adapters and what PEFT trains with them, a value head; their
// files. See model.h.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/config/family.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/lora/peft_name.h"
#include "streambp/model/lora/whole_adapters.h"
#include "streambp/model/model.h"
#include "streambp/model/weight_provider.h"
#include "streambp/ops/dry_run.h"

namespace streambp {
namespace {

/// Where PEFT writes the base of an embedding or head that is a target: its own values are loaded back then.
std::string base_layer_name(const std::string& module) {
  return fmt::format("{}{}.base_layer.weight", kPeftPrefix, module);
}

/// Fresh values as PEFT draws them.
void draw(const LoraTarget& target, const LowRankAdapter& adapter, at::Generator generator) {
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  if (adapter.bias != nullptr) adapter.bias->value.zero_();
  if (target.kind == LoraTargetKind::kEmbedding) {
    adapter.a->value.zero_();
    adapter.b->value.copy_(at::randn(adapter.b->value.sizes(), generator, wide));
    return;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(target.in));
  adapter.a->value.copy_(at::rand(adapter.a->value.sizes(), generator, wide).mul_(2.0 * bound).sub_(bound));
  adapter.b->value.zero_();
}

void require_stored(const SafetensorsFile& file, const std::string& name, at::IntArrayRef shape) {
  const SafetensorsEntry& entry = file.entry(name);
  const bool floating =
      entry.dtype == "F64" || entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16";
  if (shape != at::IntArrayRef(entry.shape) || !floating) {
    throw InputError("{}: tensor {} is {} {}, expected floating [{}]", file.path().string(), shown(name),
                     entry.dtype, shown(entry.shape), fmt::join(shape, ", "));
  }
}

void read_like(const SafetensorsFile& file, const std::string& name, const at::Tensor& into) {
  require_stored(file, name, into.sizes());
  read_into({file, name}, into);
}

/// That `file` has what `targets` say of it. adapter_config.json may name any rank: nothing of its size is
/// allocated before the tensors are known to have it.
void require_targets(const SafetensorsFile& file, const AdapterNames& names,
                     const std::vector<LoraTarget>& targets) {
  for (const LoraTarget& target : targets) {
    const int64_t ranks = target.rank * target.experts;
    require_stored(file, names.stored(target.a), {ranks, target.in});
    require_stored(file, names.stored(target.b), {target.out, ranks});
  }
}

}  // namespace

Linear& Model::map_of(const std::string& name) {
  for (const auto& map : maps_) {
    if (map->name == name) return *map;
  }
  throw InputError("{} model: no linear map is named '{}'", config_.family, name);
}

void Model::rename(Parameter& parameter, const std::string& name) {
  const auto old = by_name_.find(parameter.name);
  if (old != by_name_.end() && old->second == &parameter) by_name_.erase(old);
  parameter.name = name;
  by_name_[name] = &parameter;
}

void Model::attach(const LoraTarget& target, const LoraConfig& lora, const MapsByName& maps,
                   at::Generator generator) {
  const int64_t ranks = target.rank * target.experts;
  LowRankAdapter adapter;
  adapter.a = &add_parameter({target.a, {ranks, target.in}}, /*trainable=*/true);
  adapter.b = &add_parameter({target.b, {target.out, ranks}}, /*trainable=*/true);
  adapter.scale = target.scale;
  if (lora.lora_bias) {
    const std::string name = fmt::format("{}{}.lora_B.bias", kPeftPrefix, target.module);
    adapter.bias = &add_parameter({name, {target.out}}, /*trainable=*/true);
  }
  if (has_values(placement_.device)) draw(target, adapter, std::move(generator));
  if (target.kind == LoraTargetKind::kEmbedding) {
    embedding_adapter_ = adapter;
  } else if (target.kind == LoraTargetKind::kLinear) {
    for (Linear* map : maps.at(target.module)) {
      const int64_t rows = map->weight->value.size(0);
      map->adapter = adapter;
      if (rows == target.out) continue;
      map->adapter->b = add_rows(*adapter.b, map->first_row, rows);
      if (adapter.bias != nullptr) map->adapter->bias = add_rows(*adapter.bias, map->first_row, rows);
    }
  } else {
    attach_to_experts(target, adapter, maps);
  }
}

void Model::attach_to_experts(const LoraTarget& target, const LowRankAdapter& whole, const MapsByName& maps) {
  const bool is_down = target.kind == LoraTargetKind::kDownExperts;
  const FamilyModules modules = config_.mixture.is_stacked() ? FamilyModules{} : modules_of(config_);
  std::vector<std::string> parts{modules.down};
  if (!is_down) parts = {modules.gate, modules.up};
  if (!is_down && config_.mixture.biased_interleaved) parts = {"gate_up_proj"};
  const int64_t rows = target.out / static_cast<int64_t>(parts.size());
  for (int64_t expert = 0; expert < target.experts; ++expert) {
    LowRankAdapter adapter = whole;
    adapter.a = add_rows(*whole.a, expert * target.rank, target.rank);
    int64_t first = 0;
    for (const std::string& part : parts) {
      adapter.b = add_part(*whole.b, [=, rank = target.rank, experts = target.experts](const at::Tensor& b) {
        return b.view({b.size(0), rank, experts}).select(2, expert).narrow(0, first, rows);
      });
      maps.at(fmt::format("{}.{}.{}", target.module, expert, part)).front()->adapter = adapter;
      first += rows;
    }
  }
}

void Model::save_parameter(const std::string& name) {
  const std::string trained_name = kPeftPrefix + name;
  const bool is_tied = config_.tie_word_embeddings && head_ != nullptr;
  if (is_tied && name == "lm_head.weight") {
    Linear& head = map_of("lm_head");
    Parameter& trained = add_parameter({trained_name, head.weight->value.sizes().vec()}, /*trainable=*/true);
    trained.value.copy_(head.weight->value);
    saved_.push_back({&trained, head.weight, {}});
    head.weight = &trained;
    return;
  }
  // Whoever points at the parameter gets the copy; the base's own becomes another.
  Parameter& used = parameter(name);
  auto base = std::make_unique<Parameter>(used);
  rename(used, trained_name);
  by_name_[name] = base.get();
  {
    const MemoryScope scope("weights");
    used.value = base->value.clone();
  }
  used.gradient = zero_gradient(used.value);
  renew_parts(used);
  if (is_tied && !lora_->ensure_weight_tying && &used == embedding_ && head_->weight == embedding_)
    map_of("lm_head").weight = base.get();
  saved_.push_back({&used, base.get(), {}});
  parameters_.push_back(std::move(base));
}

void Model::train_rows(const std::string& name, const std::vector<int64_t>& tokens) {
  Parameter& whole = parameter(name);
  const auto count = static_cast<int64_t>(tokens.size());
  auto rows = std::make_unique<TrainedRows>();
  rows->whole = &whole;
  rows->delta =
      &add_parameter({trained_rows_name(module_of(name)), {count, whole.value.size(1)}}, /*trainable=*/true);
  const MemoryScope scope("weights");
  rows->indices = at::tensor(tokens, at::kLong);
  rows->slots = at::full({whole.value.size(0)}, count, at::kLong);
  rows->slots.index_copy_(0, rows->indices, at::arange(count, at::kLong));
  rows->indices = rows->indices.to(device());
  // padding_idx: no gradient from the look-up.
  if (config_.pad_token_id) rows->slots[*config_.pad_token_id] = count;
  rows->slots = rows->slots.to(device());
  rows->original = gather_rows(whole.value, rows->indices);
  rows->delta->value.copy_(rows->original);
  if (&whole == embedding_) embedding_rows_ = rows.get();
  for (const auto& map : maps_) {
    if (map->weight == &whole) map->trained_rows = rows.get();
  }
  trained_rows_.push_back(std::move(rows));
}

void Model::attach_adapters(const LoraConfig& lora, uint64_t seed) {
  if (lora_) throw InputError("LoRA: the model has adapters already");
  at::Generator generator = at::detail::createCPUGenerator(seed);
  MapsByName maps;  // the parts of a fused one share its name
  for (const auto& map : maps_) maps[map->name].push_back(map.get());
  const std::vector<LoraTarget> targets = lora_targets(config_, lora);
  const LoraExtras extras = lora_extras(config_, lora);
  for (const LoraTarget& target : targets) attach(target, lora, maps, generator);
  lora_ = lora;
  for (const std::string& name : extras.saved) {
    std::optional<LayerWeights> weights;  // the value is copied
    if (const auto layer = layer_of(name)) weights.emplace(*this, *layer);
    save_parameter(name);
  }
  for (const auto& [name, tokens] : extras.rows) train_rows(name, tokens);
  for (const auto& [name, trained_name] : extras.biases) {
    Parameter& bias = parameter(name);
    rename(bias, trained_name);
    bias.gradient = zero_gradient(bias.value);
    renew_parts(bias);
    trained_biases_.emplace_back(&bias, name);
  }
}

void Model::load_adapters(const std::filesystem::path& folder) {
  const LoraConfig lora = read_lora_config(folder, config_);
  const SafetensorsFile file = SafetensorsFile::open(folder / kAdapterFile);
  const AdapterNames names(file.entries(), config_);
  require_targets(file, names, lora_targets(config_, lora));
  attach_adapters(lora, /*seed=*/0);
  for (const auto& parameter : parameters_) {
    if (is_peft_name(parameter->name)) read_like(file, names.stored(parameter->name), parameter->value);
  }
  // PEFT writes the base of an embedding or head that is a target, and loads it back.
  const std::string embedding_base = base_layer_name("model.embed_tokens");
  const std::string head_base = base_layer_name("lm_head");
  for (const auto& [stored, entry] : file.entries()) {
    const std::optional<std::string> name = names.of_decoder(stored);
    if (!name || by_name_.contains(*name)) continue;
    if (*name == embedding_base && embedding_adapter_) {
      read_like(file, stored, embedding_->value);
    } else if (*name == head_base && head_ != nullptr && head_->adapter) {
      read_like(file, stored, head_->weight->value);
    } else if (*name == kPeftPrefix + std::string("lm_head.weight") && lora.ensure_weight_tying &&
               head_ != nullptr && head_->weight == embedding_) {
      // The one copy of both, which PEFT may write twice.
      const at::Tensor again = at::empty_like(embedding_->value);
      read_like(file, stored, again);
      if (!again.equal(embedding_->value))
        throw InputError(
            "{}: tensor {} is not the embedding's, expected one copy of both (ensure_weight_tying)",
            file.path().string(), shown(stored));
    } else {
      throw InputError("{}: tensor {} belongs to none of the adapted modules", file.path().string(),
                       shown(stored));
    }
  }
}

void Model::save_adapters(const std::filesystem::path& folder, const std::string& base) const {
  if (!lora_) throw InputError("{}: the model has no adapters to save", folder.string());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError("{}: can't be created: {}", folder.string(), error.message());
  write_lora_config(folder, *lora_, base);
  const AdapterNames names({}, config_);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : parameters_) {
    if (is_peft_name(parameter->name)) tensors[names.stored(parameter->name)] = parameter->value;
  }
  write_tensors(folder / kAdapterFile, tensors, {{"format", "pt"}});
}

void Model::attach_value_head(const at::Tensor& weight) {
  if (value_head_ != nullptr) throw InputError("value head: the model has one already");
  if (weight.sizes() != at::IntArrayRef({1, config_.hidden_size})) {
    throw InputError("value head: its weight is [{}], expected [1, {}]", fmt::join(weight.sizes(), ", "),
                     config_.hidden_size);
  }
  const std::string name = "value_head.weight";
  add_parameter({name, {1, config_.hidden_size}}, !placement_.trainable || placement_.trainable(name))
      .value.copy_(weight);
  value_head_ = add_linear("value_head", name);
}

}  // namespace streambp
