#include "streambp/optimizer/optimizer_states.h"

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/optimizer/master_weights.h"

namespace streambp {

OptimizerStates parse_optimizer(const std::string& name, int bits, bool master_weights,
                                at::ScalarType dtype) {
  OptimizerStates optimizer{name, 0, at::kFloat, master_weights};
  if (name == "sgd") {
    optimizer.states = 1;
  } else if (name == "adamw" || name == "adamw-foreach") {
    optimizer.states = 2;
    optimizer.foreach = name != "adamw";
  } else if (name != "none" && name != "paged-adamw") {
    throw InputError("--optimizer '{}': expected none, sgd, adamw, adamw-foreach or paged-adamw", name);
  }
  if (bits != 32) optimizer.dtype = bits == 16 ? at::kBFloat16 : at::kByte;
  if (master_weights && c10::elementSize(dtype) >= c10::elementSize(at::kFloat)) {
    throw InputError("--master-weights: the weights are in {} already, expected --dtype bfloat16",
                     dtype_name(dtype));
  }
  return optimizer;
}

namespace {

at::Tensor numbers_like(const Parameter& parameter, at::ScalarType dtype) {
  return at::empty(parameter.value.sizes(), parameter.value.options().dtype(dtype));
}

}  // namespace

std::vector<at::Tensor> step_temporaries(const OptimizerStates& optimizer, const Model& model) {
  std::vector<at::Tensor> temporaries;
  const MemoryScope scope("optimizer's step");
  for (const auto& parameter : model.parameters()) {
    if (optimizer.foreach && parameter->trainable())
      temporaries.push_back(numbers_like(*parameter, optimizer.dtype));
  }
  return temporaries;
}

std::vector<at::Tensor> allocate_states(const OptimizerStates& optimizer, const Model& model) {
  std::vector<at::Tensor> states;
  for (const auto& parameter : model.parameters()) {
    if (!parameter->trainable()) continue;
    const auto like = [&](at::ScalarType dtype) { states.push_back(numbers_like(*parameter, dtype)); };
    {
      const MemoryScope scope("optimizer");
      for (int i = 0; i < optimizer.states; ++i) like(optimizer.dtype);
    }
    const MemoryScope scope("master weights");
    if (optimizer.master_weights && MasterWeights::copies(*parameter)) like(at::kFloat);
  }
  return states;
}

}  // namespace streambp
