// Between the library's models and batches and those of the reference, which knows nothing of LibTorch.
#pragma once

#include <map>
#include <string>

#include "reference/model.h"
#include "streambp/model/lora/lora.h"
#include "streambp/model/model.h"
#include "verify/error_measure.h"
#include "verify/reference_config.h"

namespace streambp::verify {

/// A model's settings and parameters in the reference's terms.
struct ReferenceModel {
  reference::ModelConfig config;
  reference::Weights weights;
  std::map<std::string, std::string> names;  // of the weights, by the library's
};

/// A model in any floating dtype, widened to double. Biases and norms become one row. `lora` says what the
/// model's adapters are; null: it has none.
ReferenceModel reference_model(const Model& model, const LoraConfig* lora = nullptr);

/// The sequences of a batch, those without a token left out. The documents of packed rows are found anew,
/// from their positions.
std::vector<reference::Sequence> reference_sequences(const Batch& batch, const Config& config);

/// The logits of `model` at the scored tokens of `batch`, [M, V]: a teacher's opinion.
reference::Matrix reference_logits(const Model& model, const Batch& batch);

/// The reference's gradients of the model's trainable parameters, as float64 tensors under the library's
/// names and in its shapes; `names` as in ReferenceModel. Throws std::invalid_argument if the reference lacks
/// one.
Tensors tensors_of(const reference::Weights& gradients, const Model& model,
                   const std::map<std::string, std::string>& names);

}  // namespace streambp::verify
