// A golden case on disk (verify/goldens/README.md): what was put in, and what other people's code gave for
// it.
#pragma once

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/model.h"
#include "streambp/model/batch.h"
#include "streambp/objective/objective.h"
#include "verify/evaluation.h"

namespace streambp {

/// A case that asks for something this build does not have. Neither a failure nor bad input.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One loss of a case, in the library's terms and in the reference's, with the expected result.
struct GoldenTask {
  std::string name;  // "mean", "num_items_in_batch"
  std::unique_ptr<Objective> objective;
  reference::Objective reference;
  Evaluation truth;
};

/// What a case says of itself before anything heavy is read.
struct GoldenCase {
  std::filesystem::path folder;
  std::filesystem::path model;  // folder of its model
  std::string name;
  std::string objective;
};

/// The cases of `folder`: itself if it holds a case.json, else those of the set whose models/ and cases/ it
/// holds, by name. Throws InputError if it is neither, or if a case.json is malformed.
std::vector<GoldenCase> find_golden_cases(const std::filesystem::path& folder);

/// Throws Unsupported with the reason if the case's objective, model family or way of fine-tuning is not
/// known here.
void require_supported(const GoldenCase& golden);

/// The case's input.
Batch read_golden_batch(const GoldenCase& golden, int64_t vocab_size);

/// Every loss that the case gives numbers for, with loss, log-probabilities on the packed stream of `batch`
/// and gradients. Throws InputError, naming the file, where something is missing or not what the README says.
std::vector<GoldenTask> read_golden_tasks(const GoldenCase& golden, const Batch& batch);

}  // namespace streambp
