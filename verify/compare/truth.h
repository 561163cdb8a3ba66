// What the truth of a comparison is computed from: model, batch and objective, opened as the command line
// names them, or made of tensors (truth_of_tensors.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "streambp/model/model.h"
#include "streambp/objective/objective.h"
#include "verify/compare/compare.h"

namespace streambp::verify {

struct Truth {
  Model model;
  std::optional<Model> teacher;
  Batch batch;  // with the reference's log-probabilities, where the objective asks for them
  std::unique_ptr<Objective> objective;
  at::Tensor input_ids, labels;  // [rows, columns], as given; undefined: not given as such
  /// The same once more, in a dtype, from where this came from: whatever was done to this one's weights.
  std::function<Truth(at::ScalarType dtype)> open_again;
};

/// Everything in `dtype`, float64 for the truth itself. Golden cases keep inputs and gradients in one file,
/// under prefixes: both kinds of file are taken. Throws InputError for bad input.
Truth open_truth(const CompareOptions& options, at::ScalarType dtype = at::kDouble);

/// Has the values of all layers in memory from now on, where they come layer by layer: those in 4 or 8 bits.
void hold_values(Model& model);

/// The options of the objective that `options` give it. Throws InputError for a divisor of another objective
/// than sft.
std::map<std::string, std::string> objective_options(const CompareOptions& options);

/// Makes the objective of `truth`, whose batch may lack the reference's log-probabilities: they are then
/// those of `reference`, or of the model's own adapters as options.reference says (adapter_reference). Throws
/// InputError with `no_reference` where there is neither.
void complete_truth(Truth& truth, const CompareOptions& options, std::optional<Model> reference,
                    const std::string& no_reference);

}  // namespace streambp::verify
