#include "bench/ranks_run.h"

#include <algorithm>
#include <chrono>

#include "bench/cell_run.h"
#include "bench/json_members.h"
#include "streambp/cli/records.h"
#include "streambp/memory/meter.h"
#include "streambp/plan/models.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// The largest of all ranks' numbers.
double largest(Communicator& communicator, double number) {
  return communicator.all_gather(at::full({1}, number, at::kDouble)).max().item<double>();
}

int64_t largest(Communicator& communicator, int64_t number) {
  return communicator.all_gather(at::full({1}, number, at::kLong)).max().item<int64_t>();
}

/// What has been sent since the last reset, as the most of a rank.
std::map<Collective, Traffic> most_traffic(Communicator& communicator) {
  std::map<Collective, Traffic> sent;
  for (int i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    sent[collective] = communicator.traffic(collective);
  }
  std::erase_if(sent, [](const auto& entry) { return entry.second.messages == 0; });
  for (auto& [collective, traffic] : sent)
    traffic = {largest(communicator, traffic.bytes), largest(communicator, traffic.messages)};
  return sent;
}

json traffic_member(const std::map<Collective, Traffic>& sent) {
  json member = json::object();
  for (const auto& [collective, traffic] : sent)
    member[collective_name(collective)] = {{"bytes", traffic.bytes}, {"messages", traffic.messages}};
  return member;
}

/// Null where nothing steps.
std::unique_ptr<Optimizer> optimizer_of(const OptimizerStates& asked) {
  if (asked.name == "none") return nullptr;
  OptimizerSettings settings;
  settings.name = asked.name;
  settings.dtype = asked.dtype;
  return make_optimizer(settings);
}

/// One rank's part of a cell, and all that its steps need.
class RankSteps {
 public:
  RankSteps(Communicator& communicator, const Bench& bench, const Cell& cell, ZeroStage stage)
      : communicator_(communicator),
        bench_(bench),
        cell_(cell),
        models_(open_models(bench, stage)),
        gradients_(communicator, *models_.policy, stage),
        optimizer_(optimizer_of(bench.options.setup.optimizer)) {
    if (optimizer_) gradients_.prepare(*optimizer_);
    if (gradients_.frees()) models_.policy->defer_gradients();
    const plan::TrainingStep step = step_of_rank();
    batch_ = plan::make_batch(step, bench.config.vocab_size);
    plan::fill_reference(step, batch_);
    objective_ = objective_of_ranks(communicator, *models_.policy, step.objective, batch_,
                                    plan::options_of(step.objective, step.options));
  }

  void run(RanksRun& run) {
    Model& model = *models_.policy;
    gradients_.forget();
    communicator_.barrier();
    communicator_.reset_traffic();
    reset_peak(model.device());
    const int64_t resident = read_meter(model.device()).live_bytes;
    const auto start = std::chrono::steady_clock::now();
    Model* const teacher = models_.teacher ? &*models_.teacher : nullptr;
    const Outcome outcome = backpropagate_on_ranks(communicator_, model, batch_, *objective_, cell_.settings,
                                                   gradients_, teacher);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    run.pass = most_traffic(communicator_);
    communicator_.reset_traffic();
    const auto stepped = std::chrono::steady_clock::now();
    if (optimizer_) gradients_.step(*optimizer_);
    seconds += std::chrono::steady_clock::now() - stepped;
    run.step = most_traffic(communicator_);
    const MemoryReading memory = read_meter(model.device());
    run.loss = outcome.loss;
    run.tokens = batch_.size() * communicator_.size();
    run.resident_bytes = largest(communicator_, resident);
    run.peak_bytes = largest(communicator_, memory.peak_bytes);
    run.at_peak = memory.at_peak;
    run.seconds.push_back(largest(communicator_, seconds.count()));
  }

 private:
  /// Without the states that open_models would allocate whole. What ranks divide comes from the host's
  /// memory.
  static plan::Models open_models(const Bench& bench, ZeroStage stage) {
    plan::ModelSetup setup = bench.options.setup;
    setup.optimizer = {};
    setup.weights_on_host = stage == ZeroStage::kWeights;
    return plan::open_models(setup, bench.device);
  }

  plan::TrainingStep step_of_rank() const {
    plan::TrainingStep step = step_of(bench_, cell_);
    step.seed += static_cast<uint64_t>(communicator_.rank());
    return step;
  }

  Communicator& communicator_;
  const Bench& bench_;
  const Cell& cell_;
  plan::Models models_;
  ReducedGradients gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  Batch batch_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace

std::string stage_name(ZeroStage stage) {
  switch (stage) {
    case ZeroStage::kNone:
      return "none";
    case ZeroStage::kOptimizer:
      return "zero-1";
    case ZeroStage::kGradients:
      return "zero-2";
    case ZeroStage::kWeights:
      return "zero-3";
  }
  return "";
}

RanksRun run_on_rank(Communicator& communicator, const Bench& bench, const Cell& cell, ZeroStage stage,
                     int64_t repeats) {
  RankSteps steps(communicator, bench, cell, stage);
  RanksRun run;
  run.stage = stage;
  if (!bench.device.is_meta()) {
    steps.run(run);
    run.seconds.clear();
  }
  for (int64_t repeat = 0; repeat < repeats; ++repeat) steps.run(run);
  return run;
}

json ranks_record(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks) {
  json record = cell_configuration(bench, cell);
  record["settings"]["ranks"] = ranks;
  record["settings"]["zero"] = stage_name(run.stage);
  const bool predicted = bench.device.is_meta();
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", predicted ? "predicted" : "measured"},
                 {"tokens", run.tokens},
                 {"peak_bytes", run.peak_bytes},
                 {"resident_bytes", run.resident_bytes},
                 {"peak_beyond_resident_bytes", run.peak_bytes - run.resident_bytes},
                 {"breakdown_at_peak", run.at_peak},
                 {"sent_by_pass", traffic_member(run.pass)},
                 {"sent_by_step", traffic_member(run.step)},
                 {"seconds", predicted ? json::array() : json(run.seconds)},
                 {"seconds_median", predicted ? json(nullptr) : json(median(run.seconds))},
                 {"loss", predicted ? json(nullptr) : json(run.loss)},
                 {"status", "ok"},
                 {"error", nullptr}});
  return record;
}

}  // namespace streambp::bench
