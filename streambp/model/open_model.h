// From what the command line names to models.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "streambp/model/config/pad_token.h"
#include "streambp/model/model.h"

namespace streambp {

/// The config of `--model DIR|PRESET`. Throws InputError that says what was looked for where neither fits.
Config open_config(const std::string& model);

/// The model of `--model DIR|PRESET`: a folder's weights, or a preset's random ones from `seed`. On the meta
/// device, where nothing has values, a folder's config.json is enough, unless it says that weights are
/// quantised. `pad_token` stands in place of the config's.
Model open_model(const std::string& model, const Model::Placement& placement, uint64_t seed,
                 const GivenPadToken& pad_token = {});

}  // namespace streambp
