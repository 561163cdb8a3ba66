#include "streambp/optimizer/optimizer_states.h"

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/model/tensor_file.h"
#include "streambp/optimizer/master_weights.h"

namespace streambp {

OptimizerStates parse_optimizer(const std::string& name, int bits, bool master_weights,
                                at::ScalarType dtype) {
  OptimizerStates optimizer{name, 0, at::kFloat, master_weights};
  if (name == "sgd") {
    optimizer.states = 1;
  } else if (name == "adamw") {
    optimizer.states = 2;
  } else if (name != "none") {
    throw InputError("--optimizer '{}': expected none, sgd or adamw", name);
  }
  if (bits != 32) optimizer.dtype = bits == 16 ? at::kBFloat16 : at::kByte;
  if (master_weights && c10::elementSize(dtype) >= c10::elementSize(at::kFloat)) {
    throw InputError("--master-weights: the weights are in {} already, expected --dtype bfloat16",
                     dtype_name(dtype));
  }
  return optimizer;
}

std::vector<at::Tensor> allocate_states(const OptimizerStates& optimizer, const Model& model) {
  std::vector<at::Tensor> states;
  for (const auto& parameter : model.parameters()) {
    if (!parameter->trainable()) continue;
    const auto like = [&](at::ScalarType dtype) {
      states.push_back(at::empty(parameter->value.sizes(), parameter->value.options().dtype(dtype)));
    };
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
