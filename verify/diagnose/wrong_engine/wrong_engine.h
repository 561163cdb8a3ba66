// Loss and gradients of a model that is trained wrongly, in what is asked for. For `streambp-verify
// compare
// --diagnose`, which looks for the mistake that explains somebody's gradients, and for its tests, which plant
// mistakes.
//
// Plain ATen under autograd in float64, without chunks, streams or kernels of ours: masks are written out,
// layers run one after another over padded rows. Nothing wrong: the gradients are the truth. A layer's scores
// are held for as many rows at a time as fit, so memory grows with the square of a row's length.
#pragma once

#include <map>
#include <string>

#include "streambp/model/model.h"
#include "streambp/objective/objective.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"
#include "verify/error_measure.h"

namespace streambp::verify {

/// What is trained, and how, as the truth has it.
struct WrongSubject {
  Model& model;  // whose gradients passes overwrite
  const Batch& batch;
  std::string objective;
  std::map<std::string, std::string> options;  // of the objective
  at::Tensor input_ids;      // [rows, columns]: what stands under the padding; undefined: not known
  at::Tensor labels = {};    // [rows, columns], as given; undefined: input_ids
  Model* teacher = nullptr;  // of an objective with a divergence
};

struct WrongOutcome {
  double loss = 0.0;
  Tensors gradients;  // of the trainable parameters, float64
};

/// Throws InputError where the objective refuses what `settings` make of its batch, for an objective that
/// asks for more than log-probabilities, entropies and values, and as check_wrong_memory does.
WrongOutcome run_wrong(const WrongSubject& subject, const WrongSettings& settings);

/// Whether run_wrong knows the model, its adapters and the objective.
bool wrong_engine_knows(const WrongSubject& subject);

/// Throws InputError for rows whose scores don't fit.
void check_wrong_memory(const Config& config, const Batch& batch);

}  // namespace streambp::verify
