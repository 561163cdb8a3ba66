// A golden case on disk (verify/goldens/README.md): what was put in, and what other people's code gave for
// it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/model.h"
#include "streambp/model/batch.h"
#include "streambp/objective/objective.h"
#include "verify/evaluation.h"
#include "verify/golden_cases/case_file.h"

namespace streambp::verify {

/// A model of a case: its own, or a critic.
struct GoldenModel {
  Model model;
  std::optional<LoraConfig> lora;

  const LoraConfig* adapters() const { return lora ? &*lora : nullptr; }
};

/// One loss of a case, in the library's terms and in the reference's, with the expected result.
struct GoldenTask {
  std::string name;    // "mean", "num_items_in_batch", "policy", ...
  std::string prefix;  // of the parameters' names in the case
  GoldenModel* subject = nullptr;
  GoldenModel* teacher = nullptr;  // of distillation
  Batch batch;
  std::unique_ptr<Objective> objective;
  reference::TokenObjective reference;
  Evaluation truth;
};

/// What a case says of itself before anything heavy is read.
struct GoldenCase {
  std::filesystem::path folder;
  std::filesystem::path model;  // folder of its model
  std::string name;
  std::string objective;
};

/// A case in memory.
struct LoadedCase {
  std::vector<std::unique_ptr<GoldenModel>> models;
  std::vector<GoldenTask> tasks;       // those of the first model first
  std::vector<ParameterError> checks;  // of what was computed for it: a reference's log-probabilities, ...
};

/// The cases of `folder`: itself if it holds a case.json, else those of the set whose models/ and cases/ it
/// holds, by name. Throws InputError if it is neither, or if a case.json is malformed.
std::vector<GoldenCase> find_golden_cases(const std::filesystem::path& folder);

/// Every loss that the case gives numbers for, with loss, log-probabilities and values on the packed stream,
/// and gradients. Throws Unsupported with the reason if the case's objective, one of its hyperparameters, its
/// model family or its fine-tuning is not known here, and InputError, naming the file, where something
/// is missing or not what the README says.
LoadedCase load_golden_case(const GoldenCase& golden);

}  // namespace streambp::verify
