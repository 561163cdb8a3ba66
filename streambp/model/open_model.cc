#include "streambp/model/open_model.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <mutex>
#include <set>

#include "streambp/error.h"
#include "streambp/model/config/config_notes.h"
#include "streambp/model/config/presets/preset_name.h"
#include "streambp/model/files/model_files.h"
#include "streambp/model/quantized/packed.h"
#include "streambp/model/quantized/quantization.h"
#include "streambp/near_names.h"
#include "streambp/ops/dry_run.h"
#include "streambp/printable.h"

namespace streambp {
namespace {

/// On stderr, once for each folder, however often it is opened.
void print_notes(const std::string& model, const Config& config) {
  static std::mutex mutex;
  static std::set<std::string> noted;
  const std::lock_guard lock(mutex);
  if (!noted.insert(model).second) return;
  std::vector<std::string> notes = config_notes(config);
  if (const auto quantization = read_quantization(std::filesystem::path(model) / "config.json"))
    notes.push_back(quantization_note(*quantization));
  if (const auto packing = read_packing(std::filesystem::path(model) / "config.json"))
    notes.push_back(packing_note(*packing, config.dtype));
  for (const std::string& note : notes)
    fmt::print(stderr, "{}\n", printable(fmt::format("note: {}: {}", model, note)));
}

/// Throws where the system does not let `model` be looked at: a name too long, links in a circle.
bool is_folder(const std::string& model) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(model, error);
  if (error && status.type() != std::filesystem::file_type::not_found)
    throw InputError("model '{}': {}", printable(model, kPrintedCell), error.message());
  return std::filesystem::is_directory(status);
}

}  // namespace

std::optional<std::string> find_preset(const std::string& model) {
  if (is_preset(model)) return model;
  const size_t slash = model.find('/');
  if (slash != model.rfind('/')) return std::nullopt;
  std::string name = slash == std::string::npos ? model : model.substr(slash + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return is_preset(name) ? std::optional(name) : std::nullopt;
}

Config open_config(const std::string& model) {
  if (is_folder(model)) return read_config(std::filesystem::path(model) / "config.json");
  if (const auto name = find_preset(model)) return preset(*name);
  throw InputError("model '{}': neither a folder nor a preset (streambp-bench models lists them){}", model,
                   did_you_mean(model, suggested_presets()));
}

Model open_model(const std::string& model, const Model::Placement& placement, uint64_t seed,
                 const GivenPadToken& pad_token) {
  const auto random = [&](Config config) {
    set_pad_token(config, pad_token);
    return Model::random(config, placement, seed);
  };
  if (is_folder(model)) {
    const std::filesystem::path folder = model;
    // What one has who asks what a model would take before fetching it. How wide quantised weights are
    // stored, their own tensors say.
    const auto is_config_alone = [&] { return model_files(folder).size() == 1; };
    const auto is_enough = [&] {
      return is_packed(folder / kConfigFile) ||
             (is_config_alone() && !read_quantization(folder / kConfigFile));
    };
    if (!has_values(placement.device) && is_enough()) {
      const Config config = open_config(model);
      print_notes(model, config);
      return random(config);
    }
    const auto quantization = is_config_alone() ? read_quantization(folder / kConfigFile) : std::nullopt;
    if (quantization) {
      throw InputError(
          "{}: no weights next to config.json, which says that they are in {}: how they are stored, the "
          "tensors say; for a "
          "prediction expected the unquantised model's config.json, with --quantize {}",
          model, quantization_name(*quantization), quantization_name(*quantization));
    }
    Checkpoint checkpoint = Checkpoint::open(model);
    print_notes(model, checkpoint.config());
    checkpoint.set_pad_token(pad_token);
    return Model::load(checkpoint, placement);
  }
  return random(open_config(model));
}

}  // namespace streambp
