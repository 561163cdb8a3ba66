#include "bench/train/training_state.h"

#include <fmt/ranges.h>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "streambp/error.h"
#include "streambp/model/config/presets/preset_name.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/runtime/output_file.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr const char* kStep = "step";
constexpr const char* kKey = "run";
constexpr const char* kOptions = "options";

std::string value_name(const Parameter& parameter) {
  return "value." + parameter.name;
}

/// All that a run goes on from, the tensors themselves.
std::map<std::string, at::Tensor> tensors_of(const Model& model, const Optimizer& optimizer) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& parameter : model.parameters()) {
    if (parameter->trainable()) tensors[value_name(*parameter)] = parameter->value;
  }
  for (const auto& [name, state] : optimizer.states()) tensors["state." + name] = state;
  return tensors;
}

json source_config(const std::string& source) {
  if (!std::filesystem::is_directory(source)) return json::parse(preset_json(*find_preset(source)));
  std::ifstream file(std::filesystem::path(source) / "config.json");
  json config = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  // The text part of a multimodal model was read alone.
  if (config.contains("text_config") && config["text_config"].contains("model_type"))
    config = config["text_config"];
  config.erase("quantization_config");
  return config;
}

/// What a tokenizer of the source folder is made of; a preset has none.
void copy_tokenizer(const std::filesystem::path& source, const std::filesystem::path& folder) {
  for (const char* const name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"}) {
    if (std::filesystem::exists(source / name))
      std::filesystem::copy_file(source / name, folder / name,
                                 std::filesystem::copy_options::overwrite_existing);
  }
}

}  // namespace

void save_training_state(const std::filesystem::path& file, const Model& model, const Optimizer& optimizer,
                         int64_t step, const json& options) {
  write_tensors(file, tensors_of(model, optimizer),
                {{kStep, std::to_string(step)}, {kKey, record_key(options)}, {kOptions, json_text(options)}});
}

void require_options(const std::filesystem::path& file, const json& options) {
  const SafetensorsFile stored = SafetensorsFile::open(file);
  const auto& about = stored.metadata();
  const auto run = about.find(kKey);
  if (run == about.end())
    throw InputError("{}: no state of a training run (no {} among its metadata)", file.string(), kKey);
  if (run->second == record_key(options)) return;
  const auto was = about.find(kOptions);
  const json before =
      was == about.end() ? json() : json::parse(was->second, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> others;
  for (const json& change : before.is_object() ? json::diff(before, options) : json::array()) {
    const json::json_pointer path(change.at("path").get<std::string>());
    const auto text = [&](const json& of) { return of.contains(path) ? json_text(of.at(path)) : "none"; };
    others.push_back(
        fmt::format("{} was {}, is {}", path.to_string().substr(1), text(before), text(options)));
  }
  throw InputError(
      "{}: of a run with other options{}{}; expected those it was begun with (only --save-every, --threads "
      "and under a constant schedule --steps may differ), or another --out",
      file.string(), others.empty() ? "" : ": ", fmt::join(others, ", "));
}

int64_t load_training_state(const std::filesystem::path& file, Model& model, Optimizer& optimizer) {
  const SafetensorsFile stored = SafetensorsFile::open(file);
  const auto& about = stored.metadata();
  const auto step = about.find(kStep);
  if (step == about.end() || step->second.empty() || step->second.size() > 18 ||
      step->second.find_first_not_of("0123456789") != std::string::npos)
    throw InputError("{}: no state of a training run (no {} among its metadata)", file.string(), kStep);
  const std::map<std::string, at::Tensor> tensors = tensors_of(model, optimizer);
  std::map<std::string, at::Tensor> read;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor& value = read[name] = read_tensor(stored, name);
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type())
      throw InputError("{}: {} has another shape or dtype than the run's", file.string(), name);
  }
  if (stored.entries().size() != tensors.size())
    throw InputError("{}: {} tensors, the run has {}", file.string(), stored.entries().size(),
                     tensors.size());
  std::map<std::string, at::Tensor> states;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with("state.")) {
      states[name.substr(6)] = read.at(name);
    } else {
      tensor.copy_(read.at(name));
    }
  }
  optimizer.restore(states);
  return std::stoll(step->second);
}

void save_trained_model(const std::filesystem::path& folder, const Model& model, const std::string& source) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw InputError("{}: can't be created: {}", folder.string(), error.message());
  if (model.has_adapters()) return model.save_adapters(folder, source);
  std::map<std::string, at::Tensor> tensors;
  for (const ParameterShape& parameter : parameter_shapes(model.config()))
    tensors[stored_name(model.config(), parameter.name)] = model.parameter(parameter.name).value;
  json config = source_config(source);
  config["torch_dtype"] = dtype_name(model.dtype());
  if (config.contains("dtype")) config["dtype"] = dtype_name(model.dtype());
  copy_tokenizer(source, folder);
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file(folder / "config.json", config.dump(1) + '\n');
}

}  // namespace streambp::bench
