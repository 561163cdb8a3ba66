// What a row of the equality sweep is about: a model, a batch and an objective.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "verify/equality/inputs.h"
#include "verify/evaluation.h"

namespace streambp::verify {

/// The coordinates of a row.
struct RowName {
  std::string model;
  std::string objective = "sft";
  std::map<std::string, std::string> settings;  // options of the objective
  std::string tuning = "full";
  std::string batch;
  int64_t length = 0;
  std::vector<RowLengths> rows = {};  // of a padded batch, in place of those that `length` stands for
  std::string config = {};            // keys of config.json in place of the preset's: equality_config
  size_t turn = 0;                    // which of a quick sweep's settings it begins with
};

struct EqualitySubject {
  Model model;
  std::unique_ptr<Model> teacher;  // with distillation only
  std::optional<LoraConfig> lora;
  Batch batch;
  std::vector<std::pair<std::string, Batch>> twins;  // the same rows, padded otherwise
  std::unique_ptr<Objective> objective;
  Evaluation reference;  // the reference's answer
};

/// Throws InputError for an unknown name.
EqualitySubject make_subject(const RowName& name, uint64_t seed);

/// Whether a batch of this name, padded on one side or not at all, is made for every objective; whether it is
/// for this one.
bool is_padded_batch(const std::string& batch);
bool has_batch(const std::string& objective, const std::string& batch);

/// Options of an objective that are worth a row of their own, the defaults first.
std::vector<std::map<std::string, std::string>> objective_variants(const std::string& objective);

}  // namespace streambp::verify
