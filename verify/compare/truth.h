// What the truth of a comparison is computed from: model, batch and objective, opened as the command line
// names them.
#pragma once

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
};

/// Everything in `dtype`, float64 for the truth itself. Golden cases keep inputs and gradients in one file,
/// under prefixes: both kinds of file are taken. Throws InputError for bad input.
Truth open_truth(const CompareOptions& options, at::ScalarType dtype = at::kDouble);

}  // namespace streambp::verify
