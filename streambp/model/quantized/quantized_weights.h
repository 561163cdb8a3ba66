// The base of QLoRA: a model whose layers' matrices stay in 4 or 8 bits, and are numbers while their layer is
// run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "streambp/model/model.h"
#include "streambp/model/quantized/quantized.h"
#include "streambp/model/weight_provider.h"

namespace streambp {

/// Holds a model's quantised parameters and dequantises those of a layer when it is asked for. Resident: the
/// packed bytes; beyond them the layer that is run, in the model's dtype, both under "weights". Passes may
/// run in several threads.
class QuantizedWeights : public WeightProvider {
 public:
  /// From now on `parameter`, whose value is on the device of `quantized`, is that: of a layer its memory is
  /// freed until the layer is run, else it takes the numbers at once. Throws InputError naming it if it is
  /// trainable.
  void take(const Parameter& parameter, QuantizedTensor quantized);

  void enter(int64_t layer, std::optional<int64_t> next) override;
  void leave(int64_t layer) noexcept override;
  bool keeps_changes() const override { return false; }

 private:
  struct Weight {
    at::Tensor value;  // the parameter's own
    QuantizedTensor quantized;
  };
  struct Layer {
    std::vector<Weight> weights;
    int64_t runs = 0;  // that are going on
  };

  std::mutex mutex_;
  std::map<int64_t, Layer> layers_;
};

/// For a model of `config` that is still to be made with `placement`: each parameter that is_quantizable is
/// quantised as soon as it has its value. Give what is returned to Model::provide. The parameters have to be
/// frozen.
std::shared_ptr<QuantizedWeights> quantize_layers(const Config& config, const Quantization& quantization,
                                                  Model::Placement& placement);

}  // namespace streambp
