#include "bench/train/trainer.h"

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "bench/cli/threads.h"
#include "bench/commands/output_rules.h"
#include "bench/sweep/cells/cell.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "bench/sweep/progress.h"
#include "bench/train/text.h"
#include "bench/train/training_state.h"
#include "streambp/error.h"
#include "streambp/model/files/model_files.h"
#include "streambp/model/files/strict_json.h"
#include "streambp/plan/metered_pass.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// torch's clip_grad_norm_ has it in its divisor.
constexpr double kClipEpsilon = 1e-6;

using Schedule = double (*)(double part);
const std::array<std::pair<const char*, Schedule>, 3> kSchedules{
    {{"constant", [](double) { return 1.0; }},
     {"linear", [](double part) { return 1.0 - part; }},
     {"cosine", [](double part) { return 0.5 * (1.0 + std::cos(M_PI * part)); }}}};

Schedule schedule_of(const std::string& name) {
  std::string names;
  for (const auto& [known, schedule] : kSchedules) {
    if (name == known) return schedule;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw InputError("--schedule '{}': expected one of {}", name, names);
}

/// Parameters that are trained, and what becomes of their gradients between a pass and the step.
std::vector<Parameter*> trained(const Model& model) {
  std::vector<Parameter*> all;
  for (const auto& parameter : model.parameters()) {
    if (parameter->trainable()) all.push_back(parameter.get());
  }
  return all;
}

/// The Euclidean norm of all gradients together, summed in float64.
double gradient_norm(const std::vector<Parameter*>& parameters) {
  double squares = 0.0;
  for (const Parameter* parameter : parameters)
    squares +=
        std::pow(at::linalg_vector_norm(parameter->gradient, 2, {}, false, at::kDouble).item<double>(), 2);
  return std::sqrt(squares);
}

class Training {
 public:
  explicit Training(const TrainOptions& options)
      : options_(options),
        bench_(open_bench(options.run)),
        file_(options.run.out),
        state_file_(options.run.out / "state.safetensors"),
        progress_(!options.run.quiet) {
    const SweepOptions& run = options_.run;
    const ObjectiveKind& kind = objective_kind(run.objectives.front());
    if (!options_.text.empty()) {
      if (kind.layout != Layout::kLabels && kind.layout != Layout::kPairs)
        throw InputError("--text: {} asks for more than text; expected --tokens with its inputs", kind.name);
      text_.emplace(options_.text, bench_.config.vocab_size, options_.seq_len);
    }
    check_distinct(outputs(), inputs());
    key_ = record_key(configuration());
    if (!run.resume && (!file_.records().empty() || std::filesystem::exists(state_file_)))
      throw InputError("{}: holds a training run already; expected --resume to go on, or another --out",
                       run.out.string());
    if (std::filesystem::exists(state_file_)) require_options(state_file_, configuration());
    for (size_t i = 0; i < file_.records().size(); ++i) read_record(file_.records()[i], i + 1);
  }

  int run() {
    models_ = plan::open_models(bench_.options.setup, bench_.device);
    open_reference();
    optimizer_ = make_optimizer(options_.optimizer);
    parameters_ = trained(*models_.policy);
    if (parameters_.empty())
      throw InputError("--freeze: no parameter is left to train; expected fewer parts of names");
    for (const Parameter* parameter : parameters_) optimizer_->prepare(*parameter);
    int64_t done = 0;
    if (options_.run.resume && std::filesystem::exists(state_file_)) {
      done = load_training_state(state_file_, *models_.policy, *optimizer_);
      check_done(done);
      accept_base(done);
    }
    file_.start();
    environment_ =
        describe_environment(bench_.options.threads, bench_.device.is_cuda() ? bench_.device.index() : -1,
                             bench_.options.arguments);
    for (int64_t step = done + 1; step <= options_.steps; ++step) {
      if (!take(step)) return kExitCheckFailed;
      accept_base(step);
      const bool last = step == options_.steps;
      if (last || (options_.save_every > 0 && step % options_.save_every == 0))
        save_training_state(state_file_, *models_.policy, *optimizer_, step, configuration());
    }
    progress_.clear();
    save_trained_model(options_.run.out / "model", *models_.policy, options_.run.setup.model);
    print_line(stdout, "{} steps, loss {:.6f} at the first, {:.6f} at the last; records: {}, model: {}",
               options_.steps, losses_.begin()->second, losses_.rbegin()->second, file_.path().string(),
               (options_.run.out / "model").string());
    return kExitGood;
  }

 private:
  std::vector<NamedFile> inputs() const {
    std::vector<NamedFile> files = bench_.inputs.files;
    for (const auto& file : options_.text) files.push_back({"--text", file});
    return files;
  }

  std::vector<NamedFile> outputs() const {
    std::vector<NamedFile> files{
        {"--out", file_.path()}, {"--out", torn_lines_path(file_.path())}, {"--out", state_file_}};
    for (const char* name : {kConfigFile, kWeightFile, "adapter_config.json", "adapter_model.safetensors"})
      files.push_back({"--out", options_.run.out / "model" / name});
    return files;
  }

  void read_record(const json& record, size_t line) {
    const auto is = [&](const char* name, const std::string& value) {
      return record.contains(name) && record.at(name) == value;
    };
    if (!is("kind", "training_step") || !is("key", key_)) {
      throw InputError(
          "{} line {}: a record of something else, or of a run with other options; expected another --out",
          file_.path().string(), line);
    }
    const json step = record.value("step", json()), loss = record.value("loss", json());
    if (!step.is_number_integer() || !loss.is_number()) {
      throw InputError("{} line {}: step {}, loss {}: expected a whole number and a number",
                       file_.path().string(), line, shown(step), shown(loss));
    }
    losses_[step.get<int64_t>()] = loss.get<double>();
  }

  /// The state is that of a step on record, and not beyond the run.
  void check_done(int64_t done) const {
    if (done > options_.steps) {
      throw InputError("{}: of step {}, beyond --steps {}; expected more steps, or another --out",
                       state_file_.string(), done, options_.steps);
    }
    if (!losses_.contains(done)) {
      throw InputError("{}: of step {}, of which {} has no record; expected both files of one run",
                       state_file_.string(), done, file_.path().string());
    }
  }

  /// Whatever decides the bits of a run. Not how many steps it has: a constant learning rate permits more.
  json configuration() const {
    const Cell cell{bench_.options.objectives.front(), settings(), options_.seq_len,
                    bench_.options.batches.front()};
    json all = cell_configuration(bench_, cell);
    const OptimizerSettings& optimizer = options_.optimizer;
    all["training"] = {{"optimizer", optimizer.name},
                       {"learning_rate", optimizer.learning_rate},
                       {"betas", {optimizer.beta1, optimizer.beta2}},
                       {"epsilon", optimizer.epsilon},
                       {"weight_decay", optimizer.weight_decay},
                       {"rank", optimizer.rank},
                       {"schedule", options_.schedule},
                       {"warmup_steps", options_.warmup_steps},
                       {"clip_norm", options_.clip_norm},
                       {"data_seed", options_.data_seed}};
    if (options_.schedule != "constant") all["training"]["steps"] = options_.steps;
    if (optimizer.name == "natural-galore") {
      all["training"]["history"] = optimizer.history;
      all["training"]["damping"] = optimizer.damping;
    }
    if (optimizer.master_weights) all["training"]["master_weights"] = true;
    if (text_) all["training"]["text"] = content_key(options_.text, UINT64_MAX);
    all["settings"].erase("threads");
    all["settings"].erase("repeats");
    return all;
  }

  Settings settings() const {
    const SweepOptions& run = bench_.options;
    Settings settings = settings_for(run.methods.front(), run.given);
    if (is_chunked(settings.method)) settings.chunk = run.chunks.front();
    check_settings(settings);
    return settings;
  }

  /// Adapters of which nothing was said were fresh, or the first step would have been refused.
  void accept_base(int64_t done) {
    if (done > 0 && models_.adapter_reference == AdapterReference::kUnsaid)
      models_.adapter_reference = AdapterReference::kBase;
  }

  /// TRL's: what the policy was before it was trained; of adapters, the base without them.
  void open_reference() {
    const plan::ModelSetup& setup = bench_.options.setup;
    if (!plan::uses_reference(bench_.options.objectives.front(), bench_.options.objective_options)) return;
    if (!setup.reference.empty()) {
      models_.reference = plan::open_reference(setup, bench_.device);
    } else if (!models_.policy->has_adapters()) {
      plan::ModelSetup own = setup;
      own.reference = setup.model;
      own.seed = setup.seed - 1;  // open_reference draws random weights from the next one
      models_.reference = plan::open_reference(own, bench_.device);
    }
  }

  plan::TrainingStep step_for(int64_t step) const {
    plan::TrainingStep one;
    one.objective = bench_.options.objectives.front();
    one.options = bench_.options.objective_options;
    one.micro_batches = bench_.options.micro_batches;
    one.batch = bench_.batch;
    if (text_) {
      one.batch = std::make_shared<const Batch>(
          text_->batch(objective_kind(one.objective).layout, bench_.options.batches.front(), options_.seq_len,
                       bench_.options.prompt, options_.data_seed, step));
    }
    return one;
  }

  /// One step; false where its numbers are not finite.
  bool take(int64_t step) {
    plan::StepRunner runner(step_for(step), settings());
    runner.ask_reference(models_);
    const plan::MeteredPass pass = runner.run(models_);
    const double norm = gradient_norm(parameters_);
    const double rate = learning_rate_of(options_, step);
    if (!std::isfinite(pass.outcome.loss) || !std::isfinite(norm)) {
      progress_.clear();
      print_line(stderr, "streambp-bench: step {}: loss {}, gradient norm {}: not finite; {}", step,
                 pass.outcome.loss, norm, first_bad_gradient());
      return false;
    }
    record(step, pass, norm, rate);
    const double factor = options_.clip_norm > 0.0 ? options_.clip_norm / (norm + kClipEpsilon) : 1.0;
    optimizer_->set_learning_rate(rate);
    for (Parameter* parameter : parameters_) {
      if (factor < 1.0) parameter->gradient.mul_(factor);
      const at::Tensor buffer = parameter->gradient;  // stays for the next pass
      optimizer_->step(*parameter);
      parameter->gradient = buffer;
    }
    progress_.show(fmt::format("step {}/{}, loss {:.4f}, gradient norm {:.3g}", step, options_.steps,
                               pass.outcome.loss, norm));
    return true;
  }

  std::string first_bad_gradient() const {
    for (const Parameter* parameter : parameters_) {
      if (!parameter->value.isfinite().all().item<bool>())
        return fmt::format("the first weight that is not: {}", parameter->name);
    }
    for (const Parameter* parameter : parameters_) {
      if (!parameter->gradient.isfinite().all().item<bool>())
        return fmt::format("weights are finite, the first gradient that is not: {}", parameter->name);
    }
    return "weights and gradients are finite; try a smaller --learning-rate";
  }

  void record(int64_t step, const plan::MeteredPass& pass, double norm, double rate) {
    if (const auto known = losses_.find(step); known != losses_.end()) {
      if (known->second != pass.outcome.loss)
        throw InputError(
            "{}: step {} has loss {} on record, it is {} now: a text, a model or a program that "
            "has changed, or another number of threads; expected another --out",
            file_.path().string(), step, known->second, pass.outcome.loss);
      return;
    }
    losses_[step] = pass.outcome.loss;
    file_.append({{"schema", kRecordSchema},
                  {"kind", "training_step"},
                  {"key", key_},
                  {"step", step},
                  {"loss", pass.outcome.loss},
                  {"gradient_norm", norm},
                  {"learning_rate", rate},
                  {"seconds", pass.seconds},
                  {"tokens", pass.tokens},
                  {"peak_bytes", pass.memory.peak_bytes},
                  {"method", method_name(bench_.options.methods.front())},
                  {"model", bench_.options.setup.model},
                  {"objective", bench_.options.objectives.front()},
                  {"environment", environment_}});
  }

  TrainOptions options_;
  Bench bench_;
  RecordFile file_;
  std::filesystem::path state_file_;
  ProgressLine progress_;
  std::optional<TrainingText> text_;
  std::string key_;
  std::map<int64_t, double> losses_;  // by step, of earlier runs too
  plan::Models models_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  json environment_;
};

}  // namespace

double learning_rate_of(const TrainOptions& options, int64_t step) {
  const Schedule schedule = schedule_of(options.schedule);
  const double base = options.optimizer.learning_rate;
  const auto done = static_cast<double>(step - 1), warmup = static_cast<double>(options.warmup_steps);
  if (step <= options.warmup_steps) return base * static_cast<double>(step) / warmup;
  const double rest = std::max(1.0, static_cast<double>(options.steps) - warmup);
  return base * schedule((done - warmup) / rest);
}

int run_training(const TrainOptions& options) {
  set_threads(options.run.threads, "streambp-bench");
  return Training(options).run();
}

}  // namespace streambp::bench
