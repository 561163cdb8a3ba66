// libstreambp_judge.so: gradients of this process against the float64 truth, as an op that Python calls
// (streambp.verify). No Python in it: an op takes tensors and texts, and gives texts.
#include <exception>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>

#include <ATen/core/Dict.h>
#include <torch/library.h>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/objective/terms.h"
#include "verify/compare/hints.h"
#include "verify/compare/judge.h"
#include "verify/compare/truth_of_tensors.h"
#include "verify/diagnose/compare_diagnose.h"
#include "verify/rollout/rollout.h"

namespace streambp::verify {
namespace {

using nlohmann::json;
using TensorDict = c10::Dict<std::string, at::Tensor>;

std::map<std::string, at::Tensor> tensors_by_name(const TensorDict& dict) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : dict) tensors.emplace(entry.key(), entry.value().detach());
  return tensors;
}

/// A model of the request: its config, source and adapters by those names.
ModelTensors model_of(const json& request, const TensorDict& values) {
  return {request.at("config").get<std::string>(), request.at("source").get<std::string>(),
          request.value("adapter", ""), tensors_by_name(values)};
}

CompareOptions options_of(const json& request) {
  CompareOptions options;
  options.model = request.at("model").at("source").get<std::string>();
  options.tokens = "batch";
  options.gradients = "gradients";
  options.objective = request.at("objective").get<std::string>();
  options.settings = request.at("options").get<std::map<std::string, std::string>>();
  options.first_labels = parse_first_labels(request.value("first_labels", "refuse"));
  if (const auto found = request.find("tolerance"); found != request.end())
    options.tolerance = found->get<double>();
  if (const auto found = request.find("compute_dtype"); found != request.end())
    options.compute_dtype = parse_dtype(found->get<std::string>());
  options.chunk = request.value("chunk", int64_t{0});
  options.diagnose = request.value("diagnose", false);
  options.diagnose_chunks = request.value("diagnose_chunks", std::vector<int64_t>{});
  return options;
}

struct Judgement {
  std::string comparison;  // json_line
  std::string diagnosis;   // diagnosis_json; empty: not asked for
};

/// The truth of a request, whose models' values come by role.
Truth truth_of_request(const json& request, CompareOptions& options, const TensorDict& values,
                       const TensorDict& batch, const TensorDict& teacher, const TensorDict& reference) {
  options.reference = "base";  // of adapters: the package has asked already
  TruthTensors tensors;
  tensors.model = model_of(request.at("model"), values);
  tensors.trained = request.at("trained").get<std::set<std::string>>();
  tensors.batch = tensors_by_name(batch);
  if (request.contains("teacher")) tensors.teacher = model_of(request.at("teacher"), teacher);
  if (request.contains("reference")) tensors.reference = model_of(request.at("reference"), reference);
  Truth truth = truth_of(tensors, options);
  if (truth.model.gradients().empty())
    throw InputError("{}: no parameter is trained, so there are no gradients to judge", options.model);
  return truth;
}

Judgement judge_tensors(const json& request, const TensorDict& values, const TensorDict& batch,
                        const TensorDict& gradients, const TensorDict& teacher, const TensorDict& reference) {
  CompareOptions options = options_of(request);
  Truth truth = truth_of_request(request, options, values, batch, teacher, reference);
  const Tensors given = tensors_by_name(gradients);
  CompareReport report = judge(truth, options, given);
  add_factor_hints(truth.batch, options, report.comparison);
  for (const std::string& note : reading_notes(truth.batch)) report.comparison.notes.push_back(note);
  if (count(truth.batch).scored == 0) report.comparison.notes.emplace_back("no token is scored");
  Judgement judgement{json_line(options, report), ""};
  if (options.diagnose)
    judgement.diagnosis = diagnosis_json(diagnose_comparison(truth, options, report.comparison, given));
  return judgement;
}

/// On a thread of its own: whatever the caller's has switched on or off (autocast, inference mode, hooks on
/// saved tensors) is not on there. An InputError's message begins with "streambp: ".
template <class Work>
auto apart(const Work& work) {
  decltype(work()) result;
  std::exception_ptr failure;
  std::thread([&] {
    try {
      result = work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const InputError& error) {
    throw std::runtime_error(fmt::format("streambp: {}", error.what()));
  }
  return result;
}

std::tuple<std::string, std::string> judge_op(const std::string& request, const TensorDict& values,
                                              const TensorDict& batch, const TensorDict& gradients,
                                              const TensorDict& teacher, const TensorDict& reference) {
  const Judgement judgement = apart([&] {
    return judge_tensors(parse_strict_json(request, "request"), values, batch, gradients, teacher, reference);
  });
  return {judgement.comparison, judgement.diagnosis};
}

/// {what is printed, a line of JSON}.
std::tuple<std::string, std::string> rollout_op(const std::string& request_text, const TensorDict& values,
                                                const TensorDict& batch, const TensorDict& reference) {
  return apart([&]() -> std::tuple<std::string, std::string> {
    const json request = parse_strict_json(request_text, "request");
    CompareOptions options = options_of(request);
    Truth truth = truth_of_request(request, options, values, batch, TensorDict(), reference);
    const RatioBounds bounds{request.at("clip_min").get<double>(),
                             request.contains("clip_max") ? request.at("clip_max").get<double>() : kInfinity};
    const Rollout rollout = measure_rollout(truth, options, bounds);
    return {rollout_text(rollout), rollout_json(rollout)};
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(streambp_judge, library) {
  library.def(
      "judge(str request, Dict(str, Tensor) values, Dict(str, Tensor) batch, Dict(str, Tensor) gradients, "
      "Dict(str, Tensor) teacher, Dict(str, Tensor) reference) -> (str, str)",
      &judge_op);
  library.def(
      "rollout(str request, Dict(str, Tensor) values, Dict(str, Tensor) batch, Dict(str, Tensor) reference) "
      "-> (str, str)",
      &rollout_op);
}

}  // namespace streambp::verify
