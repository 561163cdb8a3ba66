#include "verify/compare/truth_of_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/lora/peft_name.h"

namespace streambp::verify {
namespace {

/// The model of `tensors` in `dtype`, its parameters copies of the values.
Model open_model(const ModelTensors& tensors, at::ScalarType dtype,
                 const std::function<bool(const std::string&)>& trained) {
  const Config config = parse_config(tensors.config_json, tensors.source);
  Model model = Model::skeleton(config, dtype, at::kCPU);
  if (!tensors.adapter_json.empty())
    model.attach_adapters(parse_lora_config(tensors.adapter_json, tensors.source), /*seed=*/0);
  model.give_back();
  std::map<std::string, at::Tensor> values, gradients;
  for (const auto& [name, shape] : model.skeleton_shapes()) {
    const auto found = tensors.values.find(name);
    if (found == tensors.values.end()) throw InputError("{}: weight {} is missing", tensors.source, name);
    const at::Tensor& value = found->second;
    if (value.sizes() != at::IntArrayRef(shape) || !at::isFloatingType(value.scalar_type())) {
      throw InputError("{}: weight {} is {} of shape [{}], expected floating numbers [{}]", tensors.source,
                       name, c10::toString(value.scalar_type()), fmt::join(value.sizes(), ", "),
                       fmt::join(shape, ", "));
    }
    values.emplace(name, value.detach()
                             .to(at::TensorOptions(at::kCPU).dtype(dtype), /*non_blocking=*/false,
                                 /*copy=*/true)
                             .contiguous());
    if (trained(name)) gradients.emplace(name, at::zeros(shape, at::TensorOptions(dtype)));
  }
  for (const auto& [name, value] : tensors.values) {
    if (!values.contains(name)) throw InputError("{}: {} is no weight of this model", tensors.source, name);
  }
  model.lend(values, gradients);
  return model;
}

Model open_frozen(const ModelTensors& tensors, at::ScalarType dtype) {
  return open_model(tensors, dtype, [](const std::string&) { return false; });
}

at::Tensor integers_of(const std::map<std::string, at::Tensor>& batch, const std::string& name) {
  const auto found = batch.find(name);
  return found == batch.end() ? at::Tensor() : found->second.to(at::kCPU).to(at::kLong);
}

}  // namespace

Truth truth_of(const TruthTensors& tensors, const CompareOptions& options, at::ScalarType dtype) {
  const ObjectiveKind& kind = objective_kind(options.objective);
  complete_options(kind, objective_options(options));  // throws for what is none before anything is copied
  const Config config = parse_config(tensors.model.config_json, tensors.model.source);
  const bool adapted = !tensors.model.adapter_json.empty();
  const auto trained = [&](const std::string& name) {
    return adapted ? is_peft_name(name) : tensors.trained.contains(name);
  };
  Truth truth{
      open_model(tensors.model, dtype, trained),
      std::nullopt,
      read_objective_batch(kind, tensors.batch, config.vocab_size, options.first_labels, config.pad_token_id),
      nullptr,
      integers_of(tensors.batch, "input_ids"),
      integers_of(tensors.batch, "labels"),
      [tensors, options](at::ScalarType other) { return truth_of(tensors, options, other); }};
  if (tensors.teacher) truth.teacher = open_frozen(*tensors.teacher, dtype);
  std::optional<Model> reference;
  if (tensors.reference) reference = open_frozen(*tensors.reference, dtype);
  complete_truth(truth, options, std::move(reference),
                 fmt::format("{} needs the reference's log-probabilities, in the batch or from a reference "
                             "model",
                             kind.name));
  return truth;
}

}  // namespace streambp::verify
