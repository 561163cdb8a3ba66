// Between the library's models and batches and those of the reference, which knows nothing of LibTorch.
#pragma once

#include "reference/model.h"
#include "streambp/model/model.h"
#include "verify/error_measure.h"

namespace streambp {

/// The settings of `config` in the reference's terms.
reference::ModelConfig reference_config(const Config& config);

/// The parameters of a model in any floating dtype, widened to double. Biases and norms become one row.
reference::Weights reference_weights(const Model& model);

/// The sequences of a batch, those without a token left out.
std::vector<reference::Sequence> reference_sequences(const Batch& batch);

/// The reference's gradients as float64 tensors in the shapes of the model's parameters. Throws
/// std::invalid_argument if the two list different parameters.
Tensors tensors_of(const reference::Weights& gradients, const Config& config);

}  // namespace streambp
