#include "verify/compare/truth.h"

#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "streambp/backprop/adapter_reference.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/model/weight_provider.h"
#include "streambp/objective/terms.h"
#include "streambp/ops/transformers_rounding.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// Opens the models of one comparison in one dtype.
class Opening {
 public:
  Opening(const CompareOptions& options, at::ScalarType dtype) : options_(options), dtype_(dtype) {}

  /// A preset's random weights are drawn in the dtype that the gradients' owner drew them in: numbers drawn
  /// in float64 would be others.
  Model open(const std::string& name, const std::function<bool(const std::string&)>& trainable,
             const GivenPadToken& pad_token = {}) const {
    Model::Placement placement;
    placement.dtype = placement.gradient_dtype = dtype_;
    placement.trainable = trainable;
    Model model = open_model(name, placement, options_.seed, pad_token);
    if (!std::filesystem::is_directory(name)) {
      Model::Placement narrow;
      narrow.dtype = narrow.gradient_dtype =
          parse_dtype(options_.dtype.empty() ? model.config().dtype : options_.dtype);
      narrow.trainable = [](const std::string&) { return false; };
      const Model drawn = open_model(name, narrow, options_.seed);
      for (const auto& parameter : model.parameters())
        parameter->value.copy_(drawn.parameter(parameter->name).value);
    }
    return model;
  }

  Model open_frozen(const std::string& name) const {
    return open(name, [](const std::string&) { return false; });
  }

 private:
  const CompareOptions& options_;
  at::ScalarType dtype_;
};

/// What a loss is given as trainers in float32 or less hold it. Ratios are of log-probabilities that have
/// been rounded at both ends, the policy's among them, each to about a unit in the last place of a logit.
void hold_in_float32(Batch& batch) {
  for (auto* given : {&batch.token_inputs, &batch.sequence_inputs}) {
    for (auto& [name, values] : *given) values = values.to(at::kFloat).to(values.scalar_type());
  }
  at::Generator generator = at::detail::createCPUGenerator(1);
  for (const char* name : {inputs::kOldLogProbabilities, inputs::kReferenceLogProbabilities}) {
    const auto found = batch.token_inputs.find(name);
    if (found == batch.token_inputs.end()) continue;
    at::Tensor& values = found->second;
    const at::Tensor units = at::empty(values.sizes(), at::kDouble).uniform_(-2.0, 2.0, generator);
    values = values + values.abs() * units * std::numeric_limits<float>::epsilon();
  }
}

}  // namespace

std::map<std::string, std::string> objective_options(const CompareOptions& options) {
  std::map<std::string, std::string> given = options.settings;
  if (options.divisor) {
    if (options.objective != "sft")
      throw InputError("--divisor: for sft only, not for {}", options.objective);
    given["divisor"] = fmt::format("{}", *options.divisor);
  }
  return given;
}

void complete_truth(Truth& truth, const CompareOptions& options, std::optional<Model> reference,
                    const std::string& no_reference) {
  const ObjectiveKind& kind = objective_kind(options.objective);
  const std::map<std::string, std::string> given = objective_options(options);
  const Options settings = complete_options(kind, given);
  if (reference || needs_reference(kind, settings, truth.batch)) {
    if (!reference && !truth.model.has_adapters()) throw InputError("{}", no_reference);
    const TransformersRounding as_transformers;
    const double temperature = logit_temperature(kind, settings);
    at::Tensor& log_probabilities = truth.batch.token_inputs[inputs::kReferenceLogProbabilities];
    truth.batch.sequence_inputs.erase(inputs::kReferenceSums);
    if (reference) {
      log_probabilities =
          evaluate(*reference, without_given_indices(truth.batch), temperature).log_probabilities;
    } else {
      log_probabilities = adapter_reference(truth.model, truth.batch, temperature,
                                            parse_adapter_reference(options.reference));
    }
  }
  if (truth.model.dtype() != at::kDouble) hold_in_float32(truth.batch);
  truth.objective = make_objective(kind.name, truth.batch, given);
}

void hold_values(Model& model) {
  if (model.provider() == nullptr) return;
  for (int64_t layer = 0; layer < model.config().num_hidden_layers; ++layer)
    model.provider()->enter(layer, std::nullopt);
}

Truth open_truth(const CompareOptions& options, at::ScalarType dtype) {
  const ObjectiveKind& kind = objective_kind(options.objective);
  complete_options(kind, objective_options(options));  // throws for what is none before anything is opened
  const Config config = open_config(options.model);
  const SafetensorsFile tokens = SafetensorsFile::open(options.tokens);
  const std::string prefix = tokens.entries().contains("in.input_ids") ? "in." : "";
  Batch batch = read_objective_batch(kind, tokens, config.vocab_size, prefix, options.first_labels,
                                     config.pad_token_id, options.documents);
  const at::Tensor value_head = read_optional_tensor(tokens, prefix + "value_head.weight");
  at::Tensor input_ids = read_optional_tensor(tokens, prefix + "input_ids");
  if (input_ids.defined()) input_ids = input_ids.to(at::kLong);
  const Opening opening(options, dtype);
  Truth truth{
      opening.open(
          options.model,
          [&](const std::string& name) { return options.adapter.empty() || name == "value_head.weight"; },
          options.pad_token),
      std::nullopt,
      std::move(batch),
      nullptr,
      input_ids,
      read_optional_tensor(tokens, prefix + "labels"),
      [options](at::ScalarType other) { return open_truth(options, other); }};
  if (!options.adapter.empty()) truth.model.load_adapters(options.adapter);
  if (value_head.defined()) truth.model.attach_value_head(value_head);
  if (!options.teacher.empty()) truth.teacher = opening.open_frozen(options.teacher);
  std::optional<Model> reference;
  if (is_adapter_reference(options.reference)) {
    if (options.adapter.empty())
      throw InputError("--reference {}: expected --adapter with it, or a model", options.reference);
    // As with a model, the file's own numbers do not count.
    truth.batch.sequence_inputs.erase(inputs::kReferenceSums);
    truth.batch.token_inputs.erase(inputs::kReferenceLogProbabilities);
  } else if (!options.reference.empty()) {
    reference = opening.open_frozen(options.reference);
  }
  complete_truth(truth, options, std::move(reference),
                 fmt::format("{}: {} needs the reference's log-probabilities, or --reference", options.tokens,
                             kind.name));
  return truth;
}

}  // namespace streambp::verify
