#include "verify/diagnose/wrong_engine/run_mistake.h"

#include <map>
#include <string>
#include <utility>

#include "streambp/error.h"
#include "verify/diagnose/wrong_engine/config_changes.h"
#include "verify/diagnose/wrong_engine/layer_pass.h"
#include "verify/diagnose/wrong_engine/other_weights.h"

namespace streambp::verify {
namespace {

/// Whether only the library's layers know them.
bool asks_for_layers(const WrongSettings& settings) {
  return settings.leak != Leak::kNone || settings.looks_ahead != 0 || settings.score_factor != 1.0 ||
         settings.only_layer >= 0 || settings.target_slope_rounded || settings.key_value_heads_in_turn ||
         settings.prompt_sees_itself || settings.rotation != NarrowRotation::kNone ||
         settings.z_loss != 0.0 || settings.router_z_loss != 0.0 || settings.target_logits != 0.0 ||
         !settings.exchange.one.empty() || settings.attention_softcap_straight ||
         settings.final_softcap_straight || settings.narrow == NarrowValues::kAttention ||
         settings.narrow == NarrowValues::kLogits || settings.padding_in_states ||
         settings.state_restart.size > 0 || settings.convolution_restart.size > 0 ||
         settings.vocabulary_shards > 0 || !settings.narrow_parameters.empty() ||
         !settings.config_change.empty() || !settings.config_number.empty() || changes_weights(settings) ||
         !settings.missing_norms.empty() || settings.other_head_norms || settings.picks != nullptr ||
         settings.experts != WrongExperts::kNone || settings.recurrence != WrongRecurrence{} ||
         settings.more_logits != 0.0 || settings.padding_runs || !settings.layer_order.empty() ||
         settings.heads_not_transposed || settings.zero_sink || settings.first_unseen ||
         settings.window_everywhere > 0 || settings.positions_negated || !settings.missing_logits.empty() ||
         settings.block_merge != BlockMerge::kRight || settings.rotation_straight ||
         settings.softmax_without_sum || settings.sinks_share_constant ||
         settings.slope_alone != SlopeAlone::kNone || settings.key_sum != GroupSum::kAll ||
         settings.value_sum != GroupSum::kAll || settings.teacher_logits != 1.0;
}

/// The parameter whose value `name` has; its own where none are exchanged.
std::string exchanged(std::string name, const Exchange& exchange) {
  if (exchange.one.empty()) return name;
  for (const auto& [from, to] :
       {std::pair{exchange.one, exchange.other}, std::pair{exchange.other, exchange.one}}) {
    if (const size_t at = name.find(from); at != std::string::npos) return name.replace(at, from.size(), to);
  }
  return name;
}

/// The model with other settings and weights, its gradients those of `model` itself.
Model remade(const Model& model, const Config& config, const WrongSettings& settings) {
  const std::string& narrow = settings.narrow_parameters;
  Model other = Model::skeleton(config, model.dtype(), model.device());
  other.give_back();
  std::map<std::string, at::Tensor> values, gradients;
  for (const auto& [name, shape] : other.skeleton_shapes()) {
    const Parameter& parameter = model.parameter(exchanged(name, settings.exchange));
    if (parameter.value.sizes() != at::IntArrayRef(shape))
      throw InputError("--diagnose: {} of another shape", name);
    at::Tensor value = changed_value(parameter, settings);
    if (!narrow.empty() && name.ends_with(narrow)) value = value.to(at::kBFloat16).to(value.scalar_type());
    values.emplace(name, value);
    if (parameter.trainable()) gradients.emplace(name, parameter.gradient);
  }
  other.lend(values, gradients);
  return other;
}

bool asks_for_other_model(const WrongSettings& settings) {
  return !settings.config_change.empty() || !settings.config_number.empty() ||
         !settings.exchange.one.empty() || !settings.narrow_parameters.empty() || changes_weights(settings);
}

/// The same with a teacher whose logits are multiplied by a number.
Tensors by_other_teacher(const WrongSubject& subject, WrongSettings settings) {
  if (subject.teacher == nullptr || subject.teacher->config().final_logit_softcapping > 0.0)
    throw InputError("--diagnose: another temperature of a teacher that is not there, or caps its logits");
  Config config = subject.teacher->config();
  config.logits_scaling /= std::exchange(settings.teacher_logits, 1.0);
  Model other = remade(*subject.teacher, config, {});
  return run_mistake({subject.model, subject.batch, subject.objective, subject.options, subject.input_ids,
                      subject.labels, &other},
                     settings);
}

/// By the library's layers, of a model with another config or other weights where that is the mistake.
Tensors by_layers(const WrongSubject& subject, const WrongSettings& settings) {
  if (settings.teacher_logits != 1.0) return by_other_teacher(subject, settings);
  if (!asks_for_other_model(settings)) return run_layer_pass(subject, settings);
  if (subject.model.has_adapters() || subject.model.has_value_head())
    throw InputError("--diagnose: another config of a model with adapters or a value head");
  Config config = subject.model.config();
  if (!settings.config_change.empty()) config = changed_config(config, settings.config_change);
  if (!settings.config_number.empty())
    config_number(settings.config_number).of(config) = settings.config_value;
  // Parameters that the other config does without keep no gradient of a run before.
  subject.model.zero_gradients();
  Model other = remade(subject.model, config, settings);
  const WrongSubject changed{other,           subject.batch,     subject.objective,
                             subject.options, subject.input_ids, subject.labels,
                             subject.teacher};
  WrongSettings rest = settings;
  rest.config_change.clear();
  rest.config_number.clear();
  rest.config_value = 0.0;
  rest.exchange = {};
  rest.narrow_parameters.clear();
  rest.weights.clear();
  rest.step = {};
  const Tensors found = run_layer_pass(changed, rest);
  Tensors own;
  for (const auto& [name, gradient] : found)
    own.emplace(settings.exchange.values_alone ? name : exchanged(name, settings.exchange),
                unchanged_gradient(name, gradient, settings));
  return own;
}

}  // namespace

Tensors run_mistake(const WrongSubject& subject, const WrongSettings& settings) {
  if (asks_for_layers(settings)) return by_layers(subject, settings);
  if (!wrong_engine_knows(subject)) return by_layers(subject, settings);
  return run_wrong(subject, settings).gradients;
}

}  // namespace streambp::verify
