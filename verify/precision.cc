#include "verify/precision.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "streambp/cli/command_line.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/cli/table.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// `model` in another precision, its values first rounded to it, so that both have the same.
Model rounded_twin(Model& model, const PrecisionSubject& subject) {
  Model twin = Model::random(model.config(), {subject.dtype, subject.device, subject.gradient_dtype, {}}, 0);
  if (model.has_value_head() && !twin.has_value_head())
    twin.attach_value_head(model.value_head().weight->value.to(subject.dtype));
  for (const auto& parameter : model.parameters()) {
    parameter->value.copy_(parameter->value.to(subject.dtype));
    twin.parameter(parameter->name).value.copy_(parameter->value);
  }
  return twin;
}

Evaluation in_double(Evaluation evaluation) {
  for (auto& [name, gradient] : evaluation.gradients) gradient = gradient.to(at::kDouble);
  return evaluation;
}

/// Sums of squares become root means.
void finish(Precision& sums, int64_t batches) {
  const auto root = [&](double& sum) { sum = std::sqrt(sum / static_cast<double>(batches)); };
  root(sums.loss);
  root(sums.log_probabilities);
  for (auto& [name, sum] : sums.gradients) root(sum);
}

}  // namespace

std::pair<std::string, double> Precision::worst() const {
  std::pair<std::string, double> worst{"", 0.0};
  for (const auto& [name, error] : gradients) {
    if (is_worse(error, worst.second)) worst = {name, error};
  }
  return worst;
}

double rounding_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-23;
}

std::pair<std::string, double> times_standard(const Precision& of, const Precision& standard,
                                              double rounding) {
  std::pair<std::string, double> most{"", 0.0};
  for (const auto& [name, error] : of.gradients) {
    const double times = error / std::max(standard.gradients.at(name), rounding);
    if (is_worse(times, most.second)) most = {name, times};
  }
  return most;
}

std::vector<Precision> measure_precision(const PrecisionSubject& subject, const std::vector<Settings>& ways) {
  const ObjectiveKind& kind = objective_kind(subject.objective);
  const Options defaults = complete_options(kind, {});
  Model model = equality_model(subject.model, subject.seed);
  const int64_t vocab_size = model.config().vocab_size;
  if (subject.objective == "distill")
    throw InputError("precision: objective distill needs a teacher, expected another one");
  if (subject.objective == "ppo" && !model.has_value_head()) {
    at::Generator generator = at::detail::createCPUGenerator(subject.seed + 1);
    const at::Tensor weight = at::randn({1, model.config().hidden_size}, generator, at::kDouble);
    model.attach_value_head(weight.mul_(0.2));
  }
  Model twin = rounded_twin(model, subject);
  Settings standard;
  standard.method = Method::kStandard;
  std::vector<Precision> all(ways.size());
  for (int64_t i = 0; i < subject.batches; ++i) {
    const Batch batch = synthetic_batch(kind, defaults, subject.sequences, subject.seq_len, vocab_size,
                                        subject.seed + 10 + static_cast<uint64_t>(i));
    const auto objective = make_objective(subject.objective, batch, {});
    const Evaluation truth = evaluate(model, batch, *objective, standard);
    for (size_t way = 0; way < ways.size(); ++way) {
      const EvaluationErrors errors = measure(in_double(evaluate(twin, batch, *objective, ways[way])), truth);
      all[way].loss += errors.loss * errors.loss;
      all[way].log_probabilities += errors.log_probabilities * errors.log_probabilities;
      for (const ParameterError& of : errors.gradients) all[way].gradients[of.name] += of.error * of.error;
    }
  }
  for (Precision& one : all) finish(one, subject.batches);
  return all;
}

int run_precision(const PrecisionOptions& options) {
  std::vector<Settings> ways(1);
  ways[0].method = Method::kStandard;
  for (const std::string& name : options.methods) {
    Settings settings;
    settings.method = parse_method(name);
    if (settings.method == ways.front().method) continue;
    for (const int64_t chunk : is_chunked(settings.method) ? options.chunks : std::vector<int64_t>{0}) {
      settings.chunk = settings.head_chunk = chunk;
      if (!settings.streams_head()) settings.head_chunk = 0;
      ways.push_back(settings);
    }
  }
  Table table({"dtype", "gradients", "method", "chunk", "loss", "worst gradient", "of", "x standard", "in"});
  bool good = true;
  for (const at::ScalarType dtype : options.dtypes) {
    std::vector<at::ScalarType> gradient_dtypes{dtype};
    if (dtype != at::kFloat) gradient_dtypes.push_back(at::kFloat);
    for (const at::ScalarType gradient_dtype : gradient_dtypes) {
      PrecisionSubject subject = options.subject;
      subject.dtype = dtype;
      subject.gradient_dtype = gradient_dtype;
      const std::vector<Precision> all = measure_precision(subject, ways);
      for (size_t i = 0; i < ways.size(); ++i) {
        const auto [worst, error] = all[i].worst();
        const auto [most, times] = times_standard(all[i], all[0], rounding_of(gradient_dtype));
        good = good && times <= kPrecisionFactor;
        const std::string method = method_name(ways[i].method);
        if (options.json) {
          fmt::print("{}\n", nlohmann::json{{"model", subject.model},
                                            {"objective", subject.objective},
                                            {"seq_len", subject.seq_len},
                                            {"batches", subject.batches},
                                            {"dtype", dtype_name(dtype)},
                                            {"gradient_dtype", dtype_name(gradient_dtype)},
                                            {"method", method},
                                            {"chunk", ways[i].chunk},
                                            {"loss_error", all[i].loss},
                                            {"worst_parameter", worst},
                                            {"worst_error", error},
                                            {"times_standard", times},
                                            {"times_standard_in", most},
                                            {"verdict", times <= kPrecisionFactor ? "ok" : "worse"}}
                                 .dump());
          continue;
        }
        table.add({dtype_name(dtype), dtype_name(gradient_dtype), method,
                   ways[i].chunk > 0 ? std::to_string(ways[i].chunk) : "-", error_text(all[i].loss),
                   error_text(error), worst, fmt::format("{:.2f}", times), most});
      }
    }
  }
  if (!options.json) {
    fmt::print(
        "{}\nx standard: the parameter whose error is the most times standard back-propagation's own; {}\n",
        table.text(),
        good ? fmt::format("all within {}", kPrecisionFactor)
             : fmt::format("FAILED: beyond {}", kPrecisionFactor));
  }
  return good ? kExitGood : kExitCheckFailed;
}

}  // namespace streambp::verify
