#include "bench/ranks/ranks_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "bench/cli/records.h"
#include "bench/records/json_members.h"
#include "bench/report_pages/statistics.h"
#include "bench/sweep/cells/cell_run.h"
#include "streambp/distributed/sequence/rows_objective.h"
#include "streambp/distributed/transport/communication_thread.h"
#include "streambp/memory/meter.h"
#include "streambp/plan/flops/hardware_flops.h"
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
  settings.master_weights = asked.master_weights;
  return make_optimizer(settings);
}

/// While it lives, and where it is wanted, messages have a thread.
class ThreadOfItsOwn {
 public:
  ThreadOfItsOwn(Communicator& communicator, bool wanted) : communicator_(communicator) {
    if (wanted) communicator.send_from(&thread_.emplace());
  }
  ~ThreadOfItsOwn() { communicator_.send_from(nullptr); }
  ThreadOfItsOwn(const ThreadOfItsOwn&) = delete;
  ThreadOfItsOwn& operator=(const ThreadOfItsOwn&) = delete;

 private:
  Communicator& communicator_;
  std::optional<CommunicationThread> thread_;
};

/// One rank's rows of a batch that all ranks have.
struct DividedRows {
  DividedRows(Communicator& communicator, const Config& config, const Batch& whole, Exchange exchange)
      : split(config, whole.offsets, communicator.size()), rows(communicator, split, exchange) {}

  SequenceSplit split;
  RowsOfRank rows;
};

/// One rank's part of a cell, and all that its steps need.
class RankSteps {
 public:
  RankSteps(Communicator& communicator, const Bench& bench, const Cell& cell, const Sharing& sharing)
      : communicator_(communicator),
        bench_(bench),
        cell_(cell),
        models_(open_models(bench, sharing.stage)),
        gradients_(communicator, *models_.policy, sharing.stage),
        optimizer_(optimizer_of(bench.options.setup.optimizer)) {
    if (sharing.overlaps) gradients_.overlap();
    if (optimizer_) gradients_.prepare(*optimizer_);
    if (gradients_.frees()) models_.policy->defer_gradients();
    const plan::TrainingStep step = step_of_rank(sharing.division);
    Batch whole = plan::make_batch(step, bench.config.vocab_size);
    plan::fill_reference(step, whole);
    const auto options = plan::options_of(step.objective, step.options);
    Model* const teacher = models_.teacher ? &*models_.teacher : nullptr;
    const auto operations = [&](const Batch& batch, const Objective& objective) {
      return plan::hardware_flops(*models_.policy, batch, objective, cell_.settings, teacher);
    };
    if (sharing.division == Division::kSequences) {
      parts_ =
          parts_of_rank(communicator, *models_.policy, step.objective, whole, step.micro_batches, options);
      tokens_ = whole.size() * communicator.size();
      for (const PartOfRank& part : parts_) operations_ += operations(part.batch, *part.objective);
      return;
    }
    divided_ = std::make_unique<DividedRows>(communicator, bench.config, whole, sharing.exchange);
    const SequenceSplit& split = divided_->split;
    tokens_ = whole.size();
    operations_ = operations(whole, *make_objective(step.objective, whole, options)) /
                  static_cast<double>(communicator.size());  // the split balances it
    parts_.push_back({split.batch_of(whole, communicator.rank()),
                      objective_of_rows(communicator, step.objective, whole, split, options)});
  }

  /// A pass and its step; without the step, those after it are as if it had not been.
  void run(RanksRun& run, bool takes_step = true) {
    Model& model = *models_.policy;
    gradients_.forget();
    communicator_.barrier();
    communicator_.reset_traffic();
    reset_peak(model.device());
    const int64_t resident = read_meter(model.device()).live_bytes;
    const auto start = std::chrono::steady_clock::now();
    Model* const teacher = models_.teacher ? &*models_.teacher : nullptr;
    const Outcome outcome =
        divided_
            ? backpropagate_on_ranks(communicator_, model, parts_.front().batch, *parts_.front().objective,
                                     cell_.settings, gradients_, teacher, &divided_->rows)
            : backpropagate_parts(communicator_, model, parts_, cell_.settings, gradients_, teacher);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    run.pass = most_traffic(communicator_);
    communicator_.reset_traffic();
    const auto stepped = std::chrono::steady_clock::now();
    if (optimizer_ && takes_step) gradients_.step(*optimizer_);
    seconds += std::chrono::steady_clock::now() - stepped;
    run.step = most_traffic(communicator_);
    const MemoryReading memory = read_meter(model.device());
    run.loss = outcome.loss;
    run.operations = operations_;
    run.tokens = tokens_;
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

  plan::TrainingStep step_of_rank(Division division) const {
    plan::TrainingStep step = step_of(bench_, cell_);
    if (division == Division::kSequences) step.seed += static_cast<uint64_t>(communicator_.rank());
    return step;
  }

  Communicator& communicator_;
  const Bench& bench_;
  const Cell& cell_;
  plan::Models models_;
  ReducedGradients gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<PartOfRank> parts_;         // micro-batches, or this rank's rows
  int64_t tokens_ = 0;                    // of all ranks
  std::unique_ptr<DividedRows> divided_;  // null where ranks divide sequences
  double operations_ = 0.0;
};

/// Of one more pass, as recording takes time.
Communication overlap_of_pass(Communicator& communicator, RankSteps& steps, RanksRun& run) {
  Recorder recorder(c10::DeviceType::CPU);
  steps.run(run, /*takes_step=*/false);
  const Communication own = communication_in(recorder.stop());
  const at::Tensor all =
      communicator.all_gather(at::tensor({own.seconds, own.waited, own.last}, at::kDouble));
  const at::Tensor mean = all.mean(0);
  return {
      .seconds = mean[0].item<double>(), .waited = mean[1].item<double>(), .last = mean[2].item<double>()};
}

/// Null where nothing overlaps.
json overlap_member(const std::optional<Communication>& overlap) {
  if (!overlap) return nullptr;
  const auto or_null = [](const std::optional<double>& share) {
    return share ? json(*share) : json(nullptr);
  };
  return {{"seconds", overlap->seconds},
          {"waited_seconds", overlap->waited},
          {"last_seconds", overlap->last},
          {"hidden", or_null(overlap->hidden())},
          {"hidden_before_last", or_null(overlap->hidden_before_last())}};
}

/// A cell that succeeds, of which nothing is measured yet.
json unmeasured_record(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks) {
  json record = ranks_configuration(bench, cell, sharing, ranks);
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", bench.device.is_meta() ? "predicted" : "measured"},
                 {"tokens", nullptr},
                 {"peak_bytes", nullptr},
                 {"resident_bytes", nullptr},
                 {"peak_beyond_resident_bytes", nullptr},
                 {"breakdown_at_peak", json::object()},
                 {"sent_by_pass", json::object()},
                 {"sent_by_step", json::object()},
                 {"communication", nullptr},
                 {"seconds", json::array()},
                 {"seconds_median", nullptr},
                 {"loss", nullptr},
                 {"status", "ok"},
                 {"error", nullptr}});
  return record;
}

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

RanksRun run_on_rank(Communicator& communicator, const Bench& bench, const Cell& cell, const Sharing& sharing,
                     int64_t repeats, std::optional<Recorder>* recorder) {
  const ThreadOfItsOwn thread(communicator, sharing.overlaps);
  communicator.simulate_link(static_cast<double>(sharing.link));
  RankSteps steps(communicator, bench, cell, sharing);
  RanksRun run;
  run.sharing = sharing;
  if (!bench.device.is_meta()) {
    steps.run(run);
    if (sharing.overlaps) run.overlap = overlap_of_pass(communicator, steps, run);
    run.seconds.clear();
  }
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    if (recorder != nullptr && repeat + 1 == repeats) recorder->emplace(bench.device.type());
    steps.run(run);
  }
  return run;
}

RanksRun most_of(const RanksRun& one, const RanksRun& other) {
  RanksRun most = one.peak_bytes >= other.peak_bytes ? one : other;
  most.resident_bytes = std::max(one.resident_bytes, other.resident_bytes);
  for (const auto& [sent, by] :
       {std::pair{&most.pass, &RanksRun::pass}, std::pair{&most.step, &RanksRun::step}}) {
    for (const RanksRun* run : {&one, &other}) {
      for (const auto& [collective, traffic] : run->*by) {
        Traffic& all = (*sent)[collective];
        all = {std::max(all.bytes, traffic.bytes), std::max(all.messages, traffic.messages)};
      }
    }
  }
  return most;
}

int64_t sent_bytes(const std::map<Collective, Traffic>& sent) {
  int64_t bytes = 0;
  for (const auto& [collective, traffic] : sent) bytes += traffic.bytes;
  return bytes;
}

json ranks_configuration(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks) {
  json configuration = cell_configuration(bench, cell);
  json& settings = configuration["settings"];
  settings["ranks"] = ranks;
  settings["zero"] = stage_name(sharing.stage);
  if (sharing.overlaps) settings["overlap"] = true;
  if (sharing.division == Division::kRows) {
    settings["divide"] = "rows";
    if (sharing.exchange != Exchange::kGather) settings["exchange"] = exchange_name(sharing.exchange);
  }
  if (sharing.link > 0) settings["link"] = sharing.link;
  return configuration;
}

json ranks_record(const Bench& bench, const Cell& cell, const Sharing& sharing, int64_t ranks,
                  const MemoryFailure& failure) {
  json record = unmeasured_record(bench, cell, sharing, ranks);
  record.update(
      {{"status", "oom"}, {"error", failure.error}, {"out_of_memory", out_of_memory_member(failure)}});
  return record;
}

json ranks_record(const Bench& bench, const Cell& cell, const RanksRun& run, int64_t ranks) {
  json record = unmeasured_record(bench, cell, run.sharing, ranks);
  record.update({{"tokens", run.tokens},
                 {"peak_bytes", run.peak_bytes},
                 {"resident_bytes", run.resident_bytes},
                 {"peak_beyond_resident_bytes", run.peak_bytes - run.resident_bytes},
                 {"breakdown_at_peak", run.at_peak},
                 {"sent_by_pass", traffic_member(run.pass)},
                 {"sent_by_step", traffic_member(run.step)},
                 {"communication", overlap_member(run.overlap)}});
  if (bench.device.is_meta()) return record;
  record.update({{"seconds", run.seconds}, {"seconds_median", median(run.seconds)}});
  if (std::isfinite(run.loss)) {
    record["loss"] = run.loss;
  } else {
    record.update({{"status", "error"}, {"error", fmt::format("the loss is {}", run.loss)}});
  }
  return record;
}

}  // namespace streambp::bench
