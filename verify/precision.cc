#include "verify/precision.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "streambp/backprop/head/head_divergence.h"
#include "streambp/backprop/passes.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/model/final_rows.h"
#include "streambp/plan/workload.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"

namespace streambp::verify {
namespace {

/// `model` in another precision, its values first rounded to it, so that both have the same.
Model rounded_twin(Model& model, const PrecisionSubject& subject) {
  Model::Placement placement{subject.dtype, subject.device, subject.gradient_dtype, {}};
  const Config& config = model.config();
  if (subject.head_dtype != subject.dtype && !config.value_model) placement.head_dtype = subject.head_dtype;
  Model twin = Model::random(config, placement, 0);
  if (model.has_value_head() && !twin.has_value_head())
    twin.attach_value_head(model.value_head().weight->value.to(subject.dtype));
  for (const auto& parameter : model.parameters()) {
    at::Tensor& rounded = twin.parameter(parameter->name).value;
    rounded.copy_(parameter->value);
    parameter->value.copy_(rounded);
  }
  return twin;
}

Evaluation in_double(Evaluation evaluation) {
  for (auto& [name, gradient] : evaluation.gradients) gradient = gradient.to(at::kDouble);
  return evaluation;
}

struct Best {
  at::Tensor words;  // [N]
  at::Tensor leads;  // [N] float64: log-odds against all other words
};

Best best_words(Model& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = streamed_hidden_states(model, model.prepare(batch), batch.size());
  const at::Tensor logits = capped_logits(model, final_rows_forward(model, hidden), /*cap_slope=*/nullptr);
  const at::Tensor words = logits.argmax(1, /*keepdim=*/true);
  const at::Tensor others = logits.scatter(1, words, -std::numeric_limits<double>::infinity()).logsumexp(1);
  return {words.squeeze(1).to(at::kCPU), (logits.gather(1, words).squeeze(1) - others).to(at::kCPU)};
}

/// Multiplies the final normalised states by `factor`.
void scale_norm(Model& model, double factor) {
  at::Tensor& weight = model.norm().weight->value;
  const double added = model.config().norm_adds_one ? 1.0 : 0.0;
  weight.add_(added).mul_(factor).sub_(added);
}

/// Scales the final norm until the best words of `batch` lead by `lead` nats, in the median.
void sharpen(Model& model, const Batch& batch, double lead) {
  for (int round = 0; round < 100; ++round) {
    const double reached = best_words(model, batch).leads.median().item<double>();
    if (std::abs(reached - lead) <= 0.02 * lead) return;
    scale_norm(model, reached > 0.0 ? std::clamp(lead / reached, 0.5, 2.0) : 2.0);
  }
  throw InputError("--lead {}: the logits of {} don't get there (a soft cap bounds them), expected less",
                   lead, model.config().family);
}

/// `batch` scored on the model's best words alone, where they lead by `lead` nats within a quarter.
Batch confident(Model& model, Batch batch, double lead) {
  const Best best = best_words(model, batch);
  const at::Tensor chosen =
      batch.targets.ne(kNoTarget) & best.leads.ge(0.75 * lead) & best.leads.le(1.25 * lead);
  batch.targets = at::where(chosen, best.words, at::full_like(best.words, kNoTarget));
  return batch;
}

/// NaN if any number is.
double median(std::vector<double> numbers) {
  for (const double number : numbers) {
    if (std::isnan(number)) return number;
  }
  std::sort(numbers.begin(), numbers.end());
  const size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : 0.5 * (numbers[half - 1] + numbers[half]);
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
  return worst_of(gradients);
}

double rounding_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-23;
}

std::pair<std::string, double> worst_of(const std::map<std::string, double>& errors) {
  std::pair<std::string, double> worst{"", 0.0};
  for (const auto& [name, error] : errors) {
    if (is_worse(error, worst.second)) worst = {name, error};
  }
  return worst;
}

std::map<std::string, double> times_by_parameter(const Precision& of, const Precision& standard,
                                                 double rounding) {
  std::map<std::string, double> times;
  for (const auto& [name, error] : of.gradients)
    times[name] = error / worse(standard.gradients.at(name), rounding);
  return times;
}

std::pair<std::string, double> times_standard(const Precision& of, const Precision& standard,
                                              double rounding) {
  return worst_of(times_by_parameter(of, standard, rounding));
}

std::map<std::string, double> median_of(const std::vector<std::map<std::string, double>>& seeds) {
  std::map<std::string, double> medians;
  for (const auto& [name, number] : seeds.front()) {
    std::vector<double> numbers;
    for (const auto& seed : seeds) numbers.push_back(seed.at(name));
    medians[name] = median(std::move(numbers));
  }
  return medians;
}

Precision median_of(const std::vector<Precision>& seeds) {
  Precision middle;
  std::vector<double> losses, log_probabilities;
  std::vector<std::map<std::string, double>> gradients;
  for (const Precision& seed : seeds) {
    losses.push_back(seed.loss);
    log_probabilities.push_back(seed.log_probabilities);
    gradients.push_back(seed.gradients);
    for (const auto& [name, errors] : seed.entries) middle.entries[name].add(errors);
  }
  middle.loss = median(std::move(losses));
  middle.log_probabilities = median(std::move(log_probabilities));
  middle.gradients = median_of(gradients);
  return middle;
}

std::vector<Precision> measure_precision(const PrecisionSubject& subject,
                                         const std::vector<Settings>& configurations) {
  const ObjectiveKind& kind = objective_kind(subject.objective);
  const Options defaults = complete_options(kind, {});
  Model model = equality_model(subject.model, subject.seed);
  const int64_t vocab_size = model.config().vocab_size;
  if (subject.objective == "distill")
    throw InputError("precision: objective distill needs a teacher, expected another one");
  if (plan::needs_value_head(subject.objective) && !model.has_value_head()) {
    at::Generator generator = at::detail::createCPUGenerator(subject.seed + 1);
    const at::Tensor weight = at::randn({1, model.config().hidden_size}, generator, at::kDouble);
    model.attach_value_head(weight.mul_(0.2));
  }
  const auto batch_of = [&](int64_t n) {
    return synthetic_batch(kind, defaults, subject.sequences, subject.seq_len, vocab_size,
                           subject.seed + 10 + static_cast<uint64_t>(n));
  };
  if (subject.lead != 0.0) {
    if (subject.objective != "sft" || !(subject.lead > 0.0 && subject.lead <= 100.0))
      throw InputError("--lead {} of {}: expected 0 to 100 nats, of sft", subject.lead, subject.objective);
    sharpen(model, batch_of(0), subject.lead);
  }
  Model twin = rounded_twin(model, subject);
  Settings standard;
  standard.method = Method::kStandard;
  std::vector<Precision> all(configurations.size());
  for (int64_t n = 0; n < subject.batches; ++n) {
    Batch batch = batch_of(n);
    if (subject.lead > 0.0) batch = confident(model, std::move(batch), subject.lead);
    const auto objective = make_objective(subject.objective, batch, {});
    const Evaluation truth = evaluate(model, batch, *objective, standard);
    for (size_t i = 0; i < configurations.size(); ++i) {
      const Evaluation value = in_double(evaluate(twin, batch, *objective, configurations[i]));
      const EvaluationErrors errors = measure(value, truth);
      all[i].loss += errors.loss * errors.loss;
      all[i].log_probabilities += errors.log_probabilities * errors.log_probabilities;
      for (const ParameterError& of : errors.gradients) {
        all[i].gradients[of.name] += of.error * of.error;
        // What is missing or of another shape has an error of NaN already.
        if (subject.entries && of.problem.empty())
          all[i].entries[of.name].add(value.gradients.at(of.name), truth.gradients.at(of.name),
                                      subject.dtype);
      }
    }
  }
  for (Precision& one : all) finish(one, subject.batches);
  return all;
}

}  // namespace streambp::verify
