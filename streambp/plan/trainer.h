// What other people's training loops keep that the engine does not, for predictions of their memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/settings.h"
#include "streambp/model/model.h"
#include "streambp/model/quantized/quantization.h"
#include "streambp/optimizer/gradient_consumer.h"

namespace streambp::plan {

/// - hf: `.grad` is None when a pass begins, and gradients appear as layers finish in the backward pass;
///   adapters are float32, as get_peft_model(autocast_adapter_dtype=True) makes them, and under autocast each
///   has a copy of its input.
/// - trl: the same, but adapters of a quantised base keep the model's dtype (SFTTrainer).
/// - peft-kbit: hf after prepare_model_for_kbit_training: what is not quantised is float32, and so is the
///   stream of hidden states; autocast keeps a copy of the head in the model's dtype.
enum class Trainer { kNone, kHf, kTrl, kPeftKbit };

/// none, hf, trl, peft-kbit.
std::vector<std::string> trainer_names();
const std::string& trainer_name(Trainer trainer);
/// Throws InputError that lists the names.
Trainer parse_trainer(const std::string& name);

/// Whether a loop's adapters, and so their gradients, are float32 next to a half-precision model.
bool widens_adapters(Trainer trainer, bool quantized);

/// Bytes, in tensors without a use, that the loop's weights take beyond those of `model`, a half-precision
/// one; under the scope "weights".
std::vector<at::Tensor> wider_weights(Trainer trainer, const Model& model,
                                      const std::optional<Quantization>& quantization);

/// The same of activations, of a pass over `tokens` tokens by `settings`, from its begin to its end: the
/// scope "upcasts". Undefined where there are none.
at::Tensor wider_activations(Trainer trainer, const Model& model, const Settings& settings, int64_t tokens);

/// Leaves gradients where they are: with deferred ones, they appear and stay.
class AppearingGradients final : public GradientConsumer {
 public:
  bool frees() const override { return false; }
  void use(const std::vector<Parameter*>& /*parameters*/) override {}
};

}  // namespace streambp::plan
