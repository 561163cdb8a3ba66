// What the reference gives for a model and a batch of the library.
#pragma once

#include "reference/model.h"
#include "verify/evaluation.h"
#include "verify/reference_bridge.h"

namespace streambp::verify {

/// The reference's answer for the same model and batch, in double whatever the model's dtype. `lora`: as
/// reference_model takes it.
Evaluation evaluate_reference(const Model& model, const Batch& batch,
                              const reference::TokenObjective& objective, const LoraConfig* lora = nullptr);

}  // namespace streambp::verify
