// What a training run leaves behind: the state that it goes on from, and the trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "streambp/model/model.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp::bench {

/// Writes the trained parameters, the optimizer's states and the step into one safetensors file, which is
/// replaced as a whole. `options`: whatever decides the bits of the run that they belong to.
void save_training_state(const std::filesystem::path& file, const Model& model, const Optimizer& optimizer,
                         int64_t step, const nlohmann::json& options);

/// Throws InputError that names the options in which the file's run differs, where it is another one's.
void require_options(const std::filesystem::path& file, const nlohmann::json& options);

/// Puts them back and returns the step. Throws InputError naming file and tensor: a tensor that is missing,
/// surplus, or of another shape or dtype. Nothing is changed then.
int64_t load_training_state(const std::filesystem::path& file, Model& model, Optimizer& optimizer);

/// Writes `model` as a Hugging Face folder with the config of `source`, the folder or preset that it was
/// opened as, and a folder's tokenizer; of a model with adapters, those as a PEFT folder.
void save_trained_model(const std::filesystem::path& folder, const Model& model, const std::string& source);

}  // namespace streambp::bench
