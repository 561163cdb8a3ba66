// The parts of a model that training puts beside its weights: LoRA adapters, a value head. See model.h.
#include <cmath>

#include "streambp/error.h"
#include "streambp/model/model.h"
#include "streambp/model/tensor_file.h"

namespace streambp {

void Model::attach_adapters(const LoraConfig& lora, uint64_t seed) {
  if (lora_) throw InputError("LoRA: the model has adapters already");
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::unordered_map<std::string, std::vector<Linear*>> maps;  // by name: the parts of a fused one share it
  for (const auto& map : maps_) maps[map->name].push_back(map.get());
  for (const LoraTarget& target : lora_targets(config_, lora)) {
    LowRankAdapter adapter;
    adapter.a =
        &add_parameter({lora_parameter_name(target.module, 'A'), {lora.r, target.in}}, /*trainable=*/true);
    adapter.b =
        &add_parameter({lora_parameter_name(target.module, 'B'), {target.out, lora.r}}, /*trainable=*/true);
    adapter.scale = lora.scale();
    if (!placement_.device.is_meta()) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(target.in));
      adapter.a->value.copy_(at::rand({lora.r, target.in}, generator, at::TensorOptions().dtype(at::kDouble))
                                 .mul_(2.0 * bound)
                                 .sub_(bound));
      adapter.b->value.zero_();
    }
    for (Linear* map : maps.at(target.module)) {
      const int64_t rows = map->weight->value.size(0);
      map->adapter = adapter;
      if (rows < target.out) map->adapter->b = add_part(*adapter.b, map->first_row, rows);
    }
  }
  lora_ = lora;
}

void Model::load_adapters(const std::filesystem::path& folder) {
  const LoraConfig lora = read_lora_config(folder);
  const SafetensorsFile file = SafetensorsFile::open(folder / "adapter_model.safetensors");
  attach_adapters(lora, /*seed=*/0);
  size_t adapter_parameters = 0;
  for (const auto& parameter : parameters_) {
    if (parameter->name.find(".lora_") == std::string::npos) continue;
    ++adapter_parameters;
    const at::Tensor stored = read_tensor(file, parameter->name);
    if (stored.sizes() != parameter->value.sizes() || !at::isFloatingType(stored.scalar_type())) {
      throw InputError("{}: tensor '{}' is {} [{}], expected floating [{}]", file.path().string(),
                       parameter->name, c10::toString(stored.scalar_type()), fmt::join(stored.sizes(), ", "),
                       fmt::join(parameter->value.sizes(), ", "));
    }
    parameter->value.copy_(stored);
  }
  for (const auto& [name, entry] : file.entries()) {
    if (!by_name_.contains(name)) {
      throw InputError("{}: tensor '{}' belongs to none of the adapted modules", file.path().string(), name);
    }
  }
}

void Model::save_adapters(const std::filesystem::path& folder, const std::string& base) const {
  if (!lora_) throw InputError("{}: the model has no adapters to save", folder.string());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError("{}: can't be created: {}", folder.string(), error.message());
  write_lora_config(folder, *lora_, base);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : parameters_) {
    if (parameter->name.find(".lora_") != std::string::npos) tensors[parameter->name] = parameter->value;
  }
  write_tensors(folder / "adapter_model.safetensors", tensors, {{"format", "pt"}});
}

void Model::enable_adapters(bool enabled) {
  for (const auto& map : maps_) {
    if (map->adapter) map->adapter->enabled = enabled;
  }
}

void Model::merge_adapters() {
  for (const auto& map : maps_) {
    if (!map->adapter) continue;
    map->weight->value.addmm_(map->adapter->b->value, map->adapter->a->value, /*beta=*/1,
                              map->adapter->scale);
    map->adapter.reset();
  }
  const auto is_adapter = [](const auto& p) { return p->name.find(".lora_") != std::string::npos; };
  std::erase_if(by_name_, [](const auto& entry) { return entry.first.find(".lora_") != std::string::npos; });
  std::erase_if(parts_, [&](const Part& part) { return is_adapter(part.parameter); });
  std::erase_if(parameters_, is_adapter);
  lora_.reset();
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
