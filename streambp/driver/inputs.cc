#include "streambp/driver/inputs.h"

#include "streambp/error.h"

namespace streambp {

Config open_config(const std::string& model) {
  if (std::filesystem::is_directory(model)) return read_config(std::filesystem::path(model) / "config.json");
  if (is_preset(model)) return preset(model);
  throw InputError("model '{}': neither a folder nor a preset; presets: {}", model,
                   fmt::join(preset_names(), ", "));
}

Model open_model(const std::string& model, const Model::Placement& placement, uint64_t seed) {
  if (std::filesystem::is_directory(model)) return Model::load(Checkpoint::open(model), placement);
  return Model::random(open_config(model), placement, seed);
}

}  // namespace streambp
