// What a training run leaves behind: the state that it goes on from, and the trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "streambp/model/model.h"
#include "streambp/optimizer/optimizer.h"

namespace streambp::bench {

/// Writes the trained parameters, the optimizer's states and the step into one safetensors file, which is
/// replaced as a whole. `key` stands for the run that they belong to.
void save_training_state(const std::filesystem::path& file, const Model& model, const Optimizer& optimizer,
                         int64_t step, const std::string& key);

/// Puts them back and returns the step. Throws InputError naming file and tensor: another `key`, a tensor
/// that is missing, surplus, or of another shape or dtype. Nothing is changed then.
int64_t load_training_state(const std::filesystem::path& file, Model& model, Optimizer& optimizer,
                            const std::string& key);

/// Writes `model` as a Hugging Face folder with the config of `source`, the folder or preset that it was
/// opened as; of a model with adapters, those as a PEFT folder.
void save_trained_model(const std::filesystem::path& folder, const Model& model, const std::string& source);

}  // namespace streambp::bench
