#include "verify/reference_evaluation.h"

namespace streambp::verify {
namespace {

at::Tensor tensor_of(const std::vector<double>& numbers) {
  return numbers.empty() ? at::Tensor() : at::tensor(at::ArrayRef<double>(numbers), at::kDouble);
}

}  // namespace

Evaluation evaluate_reference(const Model& model, const Batch& batch,
                              const reference::TokenObjective& objective, const LoraConfig* lora) {
  const ReferenceModel same = reference_model(model, lora);
  const reference::Result result =
      reference::evaluate(same.config, same.weights, reference_sequences(batch, model.config()), objective);
  return {result.loss, tensor_of(result.log_probabilities), tensor_of(result.values),
          tensors_of(result.gradients, model, same.names)};
}

}  // namespace streambp::verify
