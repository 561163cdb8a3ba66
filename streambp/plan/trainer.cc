#include "streambp/plan/trainer.h"

#include <algorithm>
#include <array>
#include <fmt/ranges.h>
#include <map>

#include "streambp/backprop/method_kind.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/config/family.h"

namespace streambp::plan {
namespace {

const std::array<std::string, 4> kNames{"none", "hf", "trl", "peft-kbit"};

bool is_half(const Model& model) {
  return c10::elementSize(model.dtype()) < c10::elementSize(at::kFloat);
}

at::Tensor bytes(const Model& model, int64_t count) {
  return at::empty({count}, at::TensorOptions().dtype(at::kByte).device(model.device()));
}

/// Bytes of a token that autocast's copies of adapters' inputs take in each layer: one for each adapter,
/// where the engine has one for all maps of the same input.
std::vector<int64_t> copied_inputs(const Model& model) {
  std::vector<int64_t> of_layers;
  for (size_t layer = 0; layer < model.layers().size(); ++layer) {
    int64_t copies = 0;
    std::map<std::string, int64_t> seen;  // by the room of the maps: self_attn, mlp
    for (const Parameter* parameter : model.layer_parameters(static_cast<int64_t>(layer))) {
      const std::string& name = parameter->name;
      if (name.find("lora_A") == std::string::npos) continue;
      const FamilyModules& modules = modules_of(model.config());
      const bool alone =
          name.find(modules.out) != std::string::npos || name.find(modules.down) != std::string::npos;
      const size_t end = name.rfind('.', name.find(".lora_A") - 1);
      if (!alone && seen[name.substr(0, end)]++ > 0) copies += parameter->value.size(-1);
    }
    of_layers.push_back(copies * static_cast<int64_t>(c10::elementSize(model.dtype())));
  }
  return of_layers;
}

}  // namespace

std::vector<std::string> trainer_names() {
  return {kNames.begin(), kNames.end()};
}

const std::string& trainer_name(Trainer trainer) {
  return kNames.at(static_cast<size_t>(trainer));
}

Trainer parse_trainer(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    throw InputError("--trainer '{}': expected one of {}", name, fmt::join(kNames, ", "));
  return static_cast<Trainer>(found - kNames.begin());
}

bool widens_adapters(Trainer trainer, bool quantized) {
  return trainer == Trainer::kHf || trainer == Trainer::kPeftKbit || (trainer == Trainer::kTrl && !quantized);
}

std::vector<at::Tensor> wider_weights(Trainer trainer, const Model& model,
                                      const std::optional<Quantization>& quantization) {
  std::vector<at::Tensor> wider;
  if (trainer == Trainer::kNone || !is_half(model)) return wider;
  const MemoryScope scope("weights");
  const auto narrow = static_cast<int64_t>(c10::elementSize(model.dtype()));
  const auto difference = static_cast<int64_t>(c10::elementSize(at::kFloat)) - narrow;
  if (model.has_adapters() && widens_adapters(trainer, quantization.has_value())) {
    for (const auto& parameter : model.parameters()) {
      if (parameter->trainable()) wider.push_back(bytes(model, difference * parameter->value.numel()));
    }
  }
  if (trainer != Trainer::kPeftKbit) return wider;
  for (const ParameterShape& parameter : parameter_shapes(model.config())) {
    if (!quantization || !is_quantizable(parameter, *quantization))
      wider.push_back(bytes(model, difference * c10::multiply_integers(parameter.shape)));
  }
  wider.push_back(bytes(model, narrow * model.config().vocab_size * model.config().hidden_size));
  return wider;
}

at::Tensor wider_activations(Trainer trainer, const Model& model, const Settings& settings, int64_t tokens) {
  if (trainer == Trainer::kNone || !is_half(model) || !model.has_adapters()) return {};
  const std::vector<int64_t> copies = copied_inputs(model);
  const bool recomputes = method_kind(settings.method).recomputes;
  int64_t of_token = 0;
  for (const int64_t one : copies) of_token = recomputes ? std::max(of_token, one) : of_token + one;
  if (trainer == Trainer::kPeftKbit) {
    const auto difference =
        static_cast<int64_t>(c10::elementSize(at::kFloat) - c10::elementSize(model.dtype()));
    // Between two layers, and without recomputation within each of them too.
    const int64_t streams = recomputes ? 1 : 2;
    of_token += difference * streams * model.config().residual_width() * static_cast<int64_t>(copies.size()) /
                std::max<int64_t>(1, settings.every);
  }
  if (of_token == 0) return {};
  const MemoryScope scope("upcasts");
  return bytes(model, of_token * tokens);
}

}  // namespace streambp::plan
