// What is trained and on what, whatever the method: the input of predictions and choices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"
#include "streambp/model/config/pad_token.h"
#include "streambp/model/lora/lora.h"
#include "streambp/model/quantized/quantization.h"
#include "streambp/optimizer/optimizer.h"
#include "streambp/optimizer/optimizer_states.h"
#include "streambp/plan/trainer.h"

namespace streambp::plan {

/// The models of a training run and the states of its optimizer: what is alive before and after every pass.
struct ModelSetup {
  std::string model = "qwen3-cpu";                   // a Hugging Face folder or a preset
  std::optional<Config> config;                      // of random weights, in place of what `model` names
  at::ScalarType dtype = at::kFloat;                 // of weights and activations
  at::ScalarType gradient_dtype = at::kFloat;        // that parameter gradients are summed in
  std::optional<at::ScalarType> head_dtype;          // of all models' LM heads, where it is wider
  std::vector<std::string> freeze;                   // parameters whose name contains one of these
  std::optional<LoraConfig> lora;                    // new adapters, the base is frozen
  std::optional<std::filesystem::path> adapter;      // those of a PEFT folder
  std::optional<Quantization> quantization;          // of the layers' matrices, which are frozen
  bool weights_on_host = false;                      // the layers' of all models: see HostWeights
  bool value_head = false;                           // a model without one gets one (needs_value_head)
  OptimizerStates optimizer;                         // counted, not used
  std::optional<OptimizerSettings> fused_optimizer;  // consumes each gradient in the backward pass
  std::string reference;           // a folder or preset whose log-probabilities the objective compares with
  std::string adapter_reference;   // of adapters in place of `reference`: base, adapter, or nothing is said
  bool release_reference = false;  // its weights are freed once its log-probabilities are known
  std::string teacher;             // a folder or preset to distil from
  /// In place of what `reference` and `teacher` name, as `config`.
  std::optional<Config> reference_config, teacher_config;
  GivenPadToken pad_token;           // of the model that is trained, in place of its config's
  uint64_t seed = 0;                 // of random weights
  Trainer trainer = Trainer::kNone;  // whose loop is predicted
};

/// One training step: an objective and its batch.
struct TrainingStep {
  std::string objective = "sft";
  std::map<std::string, std::string> options;  // of the objective, by name; those of others are passed over
  int64_t seq_len = 0;                         // tokens of a sample, see synthetic_batch
  int64_t sequences = 1;                       // samples in the packed stream
  int64_t prompt = 0;                          // tokens before a completion; 0: a quarter of its sequence
  int64_t micro_batches = 1;                   // passes whose gradients are added up
  uint64_t seed = 0;                           // of the tokens
  std::shared_ptr<const Batch> batch;          // in place of a drawn one; null: seq_len, ..., seed draw one
};

struct Workload {
  ModelSetup setup;
  TrainingStep step;
  /// Where it is to run. The CPU or CUDA: predictions count what that device's kernels take, and costs are
  /// estimated for it. Meta: predictions are for the device that meta stands for at the time
  /// (streambp/runtime/device.h), costs for a GPU.
  c10::Device device = at::kCPU;
};

/// The options of objective `name` among `given`.
std::map<std::string, std::string> options_of(const std::string& name,
                                              const std::map<std::string, std::string>& given);

/// Whether objective `name` compares with a reference model under the options among `given`.
bool uses_reference(const std::string& name, const std::map<std::string, std::string>& given);

/// Whether the objective asks the model for values.
bool needs_value_head(const std::string& objective);

/// The batch of a step: the given one, or one drawn from the seed. Equal calls give equal batches. Throws
/// InputError as synthetic_batch does.
Batch make_batch(const TrainingStep& step, int64_t vocab_size);

/// Zeros for the reference's log-probabilities that the step's objective asks for and `batch` lacks: their
/// values change neither memory nor time. Returns whether any were lacking.
bool fill_reference(const TrainingStep& step, Batch& batch);

}  // namespace streambp::plan
