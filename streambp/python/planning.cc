#include "streambp/python/planning.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/model/open_model.h"
#include "streambp/plan/choice.h"
#include "streambp/plan/flops/cost_model.h"
#include "streambp/plan/models.h"
#include "streambp/plan/suggest.h"
#include "streambp/python/pass_request.h"

namespace streambp::python {
namespace {

using nlohmann::json;

/// What a request asks to be predicted.
struct Question {
  plan::Workload workload;
  Settings settings;
  std::set<std::string> fixed;  // names of the settings that were given
};

int64_t at_least(const json& request, const char* name, int64_t least) {
  const auto value = request.value(name, least);
  if (value < least) throw InputError("{} {}: expected {} or more", name, value, least);
  return value;
}

/// The config of a model of a request, where it brings one; its name otherwise.
std::optional<Config> read_model(const json& model, std::string& name) {
  name = model.at("source").get<std::string>();
  if (!model.contains("config")) return std::nullopt;
  return parse_config(model.at("config").get<std::string>(), name);
}

void read_setup(const json& request, plan::ModelSetup& setup) {
  const json& model = request.at("model");
  setup.config = read_model(model, setup.model);
  const std::string dtype = request.value("dtype", "model");
  const auto own_dtype = [&] { return setup.config ? setup.config->dtype : open_config(setup.model).dtype; };
  setup.dtype = parse_dtype(dtype == "model" ? own_dtype() : dtype);
  const auto wide = [&](const char* key) {
    return plan::parse_wide_dtype(key, request.value(key, "same"), setup.dtype);
  };
  setup.gradient_dtype = wide("gradient_dtype");
  if (const at::ScalarType of_head = wide("head_dtype"); of_head != setup.dtype) setup.head_dtype = of_head;
  setup.freeze = request.value("freeze", std::vector<std::string>{});
  setup.value_head = request.value("value_head", false);
  if (model.contains("adapter"))
    setup.lora = parse_lora_config(model.at("adapter").get<std::string>(), setup.model + ", adapter");
  setup.optimizer = parse_optimizer(request.value("optimizer", "none"), request.value("optimizer_bits", 32),
                                    request.value("master_weights", false), setup.dtype);
  setup.release_reference = request.value("release_reference", false);
  if (request.contains("reference"))
    setup.reference_config = read_model(request.at("reference"), setup.reference);
  if (request.contains("teacher")) setup.teacher_config = read_model(request.at("teacher"), setup.teacher);
}

/// Tensors of a request, by name: shape, and values in one list.
std::map<std::string, at::Tensor> read_tensors(const json& batch) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.items()) {
    const json& values = tensor.at("values");
    const bool whole =
        std::all_of(values.begin(), values.end(), [](const json& v) { return v.is_number_integer(); });
    const at::Tensor flat = whole ? at::tensor(values.get<std::vector<int64_t>>(), at::kLong)
                                  : at::tensor(values.get<std::vector<double>>(), at::kDouble);
    tensors.emplace(name, flat.view(tensor.at("shape").get<std::vector<int64_t>>()));
  }
  return tensors;
}

Question read_question(const json& request) {
  Question question;
  plan::Workload& workload = question.workload;
  read_setup(request, workload.setup);
  plan::TrainingStep& step = workload.step;
  step.objective = request.at("objective").get<std::string>();
  step.options = request.at("options").get<std::map<std::string, std::string>>();
  const ObjectiveKind& kind = objective_kind(step.objective);
  complete_options(kind, step.options);  // throws for what is none
  if (step.objective == "distill" && workload.setup.teacher.empty())
    throw InputError("distill: expected a teacher");
  const auto pass = read_pass_request(request.at("settings").get<std::map<std::string, std::string>>());
  question.settings = pass.settings;
  question.fixed = pass.fixed;
  step.micro_batches = pass.micro_batches;
  step.seq_len = at_least(request, "seq_len", 1);
  step.sequences = at_least(request, "sequences", 1);
  step.prompt = at_least(request, "prompt", 0);
  const c10::Device device(request.value("device", "cpu"));
  if (!device.is_cpu() && !device.is_cuda())
    throw InputError("device '{}': expected cpu or cuda", device.str());
  workload.device = c10::Device(device.type());
  if (!request.contains("batch")) return question;
  const Config config = workload.setup.config ? *workload.setup.config : open_config(workload.setup.model);
  step.batch = std::make_shared<const Batch>(
      read_objective_batch(kind, read_tensors(request.at("batch")), config.vocab_size,
                           parse_first_labels(pass.first_labels), config.pad_token_id));
  step.sequences = static_cast<int64_t>(step.batch->offsets.size()) - 1;
  step.seq_len = step.batch->padded_columns;
  return question;
}

json to_json(const plan::Prediction& prediction) {
  return {{"seq_len", prediction.seq_len},
          {"tokens", prediction.tokens},
          {"chunk", prediction.chunk},
          {"head_chunk", prediction.head_chunk},
          {"peak_bytes", prediction.peak_bytes},
          {"resident_bytes", prediction.resident_bytes},
          {"breakdown", prediction.breakdown},
          {"host_peak_bytes", prediction.host_peak_bytes},
          {"model_flops", prediction.model_flops},
          {"hardware_flops", prediction.hardware_flops}};
}

json to_json(const plan::LongestFit& fit, const std::string& model) {
  json object{{"model", model},
              {"seq_len", fit.seq_len},
              {"resolution", fit.resolution},
              {"evaluations", fit.evaluations},
              {"configuration", configuration_text(fit.settings)},
              {"at_longest", nullptr},
              {"at_shortest", to_json(fit.at_shortest)}};
  if (fit.at_longest) object["at_longest"] = to_json(*fit.at_longest);
  return object;
}

/// The settings of a configuration that are not the defaults, as Python gives them.
json settings_of(const Settings& settings) {
  json given{{"method", method_name(settings.method)}};
  for (const SettingKind& kind : setting_kinds()) {
    if (applies(kind, settings) && !is_default(kind, settings)) given[kind.name] = kind.text(settings);
  }
  return given;
}

/// Less `margin_bytes`, or the device's usual margin where a request says nothing of it.
plan::Budget read_budget(const json& request, c10::Device device) {
  plan::Budget budget;
  std::optional<int64_t> margin;
  if (request.contains("margin_bytes")) margin = at_least(request, "margin_bytes", 0);
  budget.device = plan::less_margin(at_least(request, "budget_bytes", 1), margin, device.type());
  budget.host = at_least(request, "host_budget_bytes", 0);
  return budget;
}

json to_json(const plan::Prediction& prediction, const std::string& model, const Settings& settings) {
  json object = to_json(prediction);
  object["model"] = model;
  object["configuration"] = configuration_text(settings);
  return object;
}

/// What is searched: whatever was not given.
plan::SearchSpace search_space(const json& request, const Question& question) {
  plan::SearchSpace space;
  space.given = question.settings;
  space.fixed = question.fixed;
  if (request.at("settings").contains("method")) space.methods = {question.settings.method};
  space.chunks = {question.settings.chunk};
  return space;
}

json predict(const json& request) {
  const Question question = read_question(request);
  return to_json(plan::predict(question.workload, question.settings), question.workload.setup.model,
                 question.settings);
}

json longest(const json& request) {
  const Question question = read_question(request);
  plan::Predictor predictor(plan::complete_setup(question.workload), question.workload.device);
  return to_json(
      plan::longest(predictor, question.workload.step, question.settings,
                    read_budget(request, question.workload.device), at_least(request, "resolution", 1)),
      question.workload.setup.model);
}

json suggest(const json& request) {
  const Question question = read_question(request);
  const plan::SearchSpace space = search_space(request, question);
  plan::Predictor predictor(plan::complete_setup(question.workload), question.workload.device);
  json all = json::array();
  const plan::Budget budget = read_budget(request, question.workload.device);
  for (const plan::Suggestion& found :
       plan::suggest(predictor, question.workload.step, space, budget, at_least(request, "wanted", 0))) {
    json object = to_json(found.fit, question.workload.setup.model);
    object["settings"] = settings_of(found.settings);
    object["configuration"] = configuration_text(found.settings);
    object["cost"] = found.cost;
    object["best"] = found.best;
    all.push_back(object);
  }
  return all;
}

json choose(const json& request) {
  const Question question = read_question(request);
  const plan::Choice choice = plan::choose(question.workload, search_space(request, question),
                                           read_budget(request, question.workload.device));
  json object{{"description", plan::describe(choice)}, {"considered", choice.considered.size()}};
  if (!choice.chosen) return object;
  const plan::Considered& one = choice.considered[*choice.chosen];
  object["settings"] = settings_of(one.settings);
  object["cost"] = one.cost;
  object["prediction"] = to_json(*one.predicted, question.workload.setup.model, one.settings);
  return object;
}

json keep(const json& request) {
  const Question question = read_question(request);
  const plan::TrainingStep& step = question.workload.step;
  plan::Predictor predictor(plan::complete_setup(question.workload), question.workload.device);
  const plan::CostModel costs(predictor.models(), step, question.workload.device);
  SearchContext context{.layers = predictor.models().policy->config().num_hidden_layers};
  std::vector<std::pair<double, json>> all;
  for (const char* attention : {"false", "true"}) {
    context.settings = question.settings;
    set_setting(setting_kind("keep_attention"), context.settings, attention);
    for (const std::string& text : setting_kind("keep").candidates(context)) {
      Settings settings = context.settings;
      set_setting(setting_kind("keep"), settings, text);
      const plan::Prediction found = predictor.predict(step, settings);
      const double cost = costs.relative(settings);
      all.emplace_back(cost, json{{"keep", kept_layers_text(settings.keep)},
                                  {"beyond_resident_bytes", found.peak_bytes - found.resident_bytes},
                                  {"cost", cost}});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  json result = json::array();
  for (auto& [cost, one] : all) result.push_back(std::move(one));
  return result;
}

}  // namespace

std::string answer_question(const std::string& question, const std::string& text) {
  json result;
  try {
    const json request = parse_strict_json(text, "request");
    if (question == "predict") {
      result["answer"] = predict(request);
    } else if (question == "longest") {
      result["answer"] = longest(request);
    } else if (question == "suggest") {
      result["answer"] = suggest(request);
    } else if (question == "choose") {
      result["answer"] = choose(request);
    } else if (question == "keep") {
      result["answer"] = keep(request);
    } else {
      throw InputError("'{}': expected predict, longest, suggest, choose or keep", question);
    }
  } catch (const InputError& error) {
    result = {{"refused", error.what()}};
  }
  return result.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

}  // namespace streambp::python
