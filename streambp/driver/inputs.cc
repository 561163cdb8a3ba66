#include "streambp/driver/inputs.h"

#include <cstdio>
#include <set>

#include "streambp/error.h"
#include "streambp/model/config_notes.h"
#include "streambp/model/tensor_file.h"

namespace streambp {
namespace {

/// On stderr, once for each folder, however often it is opened.
void print_notes(const std::string& model, const Config& config) {
  static std::set<std::string> noted;
  if (!noted.insert(model).second) return;
  for (const std::string& note : config_notes(config)) fmt::print(stderr, "note: {}: {}\n", model, note);
}

}  // namespace

Config open_config(const std::string& model) {
  if (std::filesystem::is_directory(model)) return read_config(std::filesystem::path(model) / "config.json");
  if (is_preset(model)) return preset(model);
  throw InputError("model '{}': neither a folder nor a preset; presets: {}", model,
                   fmt::join(preset_names(), ", "));
}

Model open_model(const std::string& model, const Model::Placement& placement, uint64_t seed) {
  if (std::filesystem::is_directory(model)) {
    const Checkpoint checkpoint = Checkpoint::open(model);
    print_notes(model, checkpoint.config());
    return Model::load(checkpoint, placement);
  }
  return Model::random(open_config(model), placement, seed);
}

Batch read_batch(const std::filesystem::path& file, int64_t vocab_size, const std::string& prefix) {
  const SafetensorsFile tensors = SafetensorsFile::open(file);
  const auto optional = [&](const char* name) { return read_optional_tensor(tensors, prefix + name); };
  const at::Tensor input_ids = read_tensor(tensors, prefix + "input_ids");
  try {
    return pack(input_ids, optional("attention_mask"), optional("labels"), optional("position_ids"),
                vocab_size);
  } catch (const InputError& error) {
    throw InputError("{}: {}", file.string(), error.what());
  }
}

}  // namespace streambp
