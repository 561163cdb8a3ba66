#include "bench/sweep/sweep.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/print.h"
#include "bench/cli/records.h"
#include "bench/cli/threads.h"
#include "bench/records/known_records.h"
#include "bench/records/report.h"
#include "bench/report_pages/statistics.h"
#include "bench/sweep/budget.h"
#include "bench/sweep/cells/cell_run.h"
#include "bench/sweep/cells/sweep_cells.h"
#include "bench/sweep/choice.h"
#include "bench/sweep/gemm_rate.h"
#include "bench/sweep/recording_files.h"
#include "bench/sweep/sweep_progress.h"
#include "streambp/error.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/plan/offload.h"
#include "streambp/runtime/failure.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kGemmHolds{2};

json relative_time(const MedianInterval& ratio, const std::string& base) {
  return {{"to", base},         {"ratio", ratio.median},      {"low", ratio.low},
          {"high", ratio.high}, {"coverage", ratio.coverage}, {"rounds", ratio.count}};
}

bool same_group(const Cell& a, const Cell& b) {
  return a.seq_len == b.seq_len && a.batch == b.batch;
}

class Sweep {
 public:
  Sweep(const Bench& bench, std::vector<Cell> cells, RecordFile& file)
      : bench_(bench),
        cells_(std::move(cells)),
        choices_(cells_.size()),
        shortages_(cells_.size()),
        file_(file),
        progress_(!bench.options.quiet, bench.options.repeats == 0),
        results_(cells_.size()) {
    const KnownRecords known(file, bench_.inputs);
    for (const Cell& cell : cells_) {
      const json configuration = cell_configuration(bench_, cell);
      keys_.push_back(record_key(configuration));
      const json* const record = known.find(configuration);
      known_.push_back(record != nullptr ? std::optional(*record) : std::nullopt);
      if (record == nullptr) progress_.expect(weight_of_rounds(cell, most_rounds()));
    }
  }

  /// The record of each cell, in their order.
  std::vector<json> run() {
    choose_all();
    for (size_t begin = 0, end = 0; begin < cells_.size(); begin = end) {
      while (end < cells_.size() && same_group(cells_[end], cells_[begin])) ++end;
      run_group(begin, end);
    }
    progress_.clear();
    for (const std::string& line : tiled_attention()) fmt::print(stderr, "note: attention of {}\n", line);
    return results_;
  }

 private:
  struct Pending {
    size_t index;  // into the cells
    CellRun run;
    bool done = false;
  };

  /// Every cell that leaves something open and is not known becomes one that can be run, before anything is
  /// measured: the models of the dry run are gone by then.
  void choose_all() {
    std::optional<plan::Predictor> predictor;
    plan::Budget budget;
    for (size_t i = 0; i < cells_.size(); ++i) {
      Cell& cell = cells_[i];
      const bool open_offload = plan::leaves_offload_open(cell.settings) && knows_budget(bench_);
      if (!(cell.automatic || open_offload) || known_[i]) continue;
      if (!predictor) {
        budget = budget_of(bench_);
        predictor.emplace(bench_.options.setup, bench_.device);
      }
      progress_.show(fmt::format("[{}/{}] choosing for length {}, batch {}, {}", i + 1, cells_.size(),
                                 cell.seq_len, cell.batch, cell.objective));
      try {
        if (!cell.automatic) {
          cell.settings = plan::fit_offload(*predictor, step_of(bench_, cell), cell.settings, budget,
                                            plan::OffloadGoal::kFewest)
                              .settings;
          continue;
        }
        choices_[i] = plan::choose(*predictor, step_of(bench_, cell), search_space(bench_.options), budget);
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        shortages_[i] = failure_of(error);
        continue;
      }
      const plan::Choice& choice = *choices_[i];
      const plan::Considered* const taken =
          choice.chosen ? &choice.considered[*choice.chosen] : choice.leanest();
      if (taken != nullptr) cell.settings = taken->settings;
      cell.automatic = false;
      say(cell, choice_reason(choice));
    }
  }

  void say(const Cell& cell, const std::string& reason) {
    progress_.clear();
    if (bench_.options.quiet) return;
    print_line(stderr, "length {}, batch {}, {}: auto: {}", cell.seq_len, cell.batch, cell.objective, reason);
  }

  /// Cells [begin, end): one length, one batch.
  void run_group(size_t begin, size_t end) {
    warn_if_unscored(cells_[begin]);
    std::vector<Pending> pending;
    for (size_t i = begin; i < end; ++i) {
      if (known_[i]) {
        if (const auto choice = known_[i]->find("choice"); choice != known_[i]->end() && choice->is_object())
          say(cells_[i], choice->value("reason", ""));
        show(i, *known_[i]);
      } else {
        pending.push_back({i, CellRun(bench_, cells_[i])});
      }
    }
    if (!pending.empty()) open_models_once();
    for (Pending& cell : pending) {
      if (load_failure_) cell.run.run_out(*load_failure_);
      if (shortages_[cell.index]) {
        cell.run.run_out(*shortages_[cell.index]);
        continue;
      }
      if (nothing_fits(cell.index)) {
        const plan::Choice& choice = *choices_[cell.index];
        const std::optional<MemoryFailure> failure = bench::nothing_fits(choice);
        failure ? cell.run.run_out(*failure) : cell.run.fail(choice_reason(choice));
        continue;
      }
      const std::optional<size_t> shorter = shortest_oom(cells_[cell.index]);
      if (models_.policy && shorter)
        cell.run.run_out(not_run_beyond(cells_[*shorter].seq_len, results_[*shorter]));
    }
    ask_reference(pending);
    warm_up(pending);
    measure_machine(pending);
    take_turns(pending);
  }

  int64_t most_rounds() const { return bench_.options.repeats > 0 ? bench_.options.repeats : kMostRounds; }

  static double weight_of_rounds(const Cell& cell, int64_t rounds) {
    return static_cast<double>(rounds) * pass_weight(cell.seq_len, cell.batch);
  }

  void take_turns(std::vector<Pending>& pending) {
    const bool until_known = bench_.options.repeats == 0;
    for (int64_t round = 1; round <= most_rounds(); ++round) {
      for (Pending& cell : pending) {
        if (cell.done) continue;
        if (!cell.run.failed()) run_once(cell, round);
        if (!cell.run.failed() && (until_known || round < most_rounds())) continue;
        progress_.skip(weight_of_rounds(cell.run.cell(), most_rounds() - round));
        finish(cell, pending);
      }
      const bool enough = until_known && round >= kFewestRounds &&
                          std::all_of(pending.begin(), pending.end(), [&](const Pending& cell) {
                            return cell.done || is_known(time_of(cell, pending), kKnownTime);
                          });
      if (!until_known || (!enough && round < most_rounds())) continue;
      for (Pending& cell : pending) {
        if (cell.done) continue;
        progress_.skip(weight_of_rounds(cell.run.cell(), most_rounds() - round));
        finish(cell, pending);
      }
      return;
    }
  }

  void run_once(Pending& cell, int64_t round) {
    progress_.show(describe(cell) + fmt::format(", repeat {}/{}", round, most_rounds()));
    const auto begin = std::chrono::steady_clock::now();
    cell.run.repeat(models_);
    progress_.ran(weight_of_rounds(cell.run.cell(), 1), begin, cell.run.peak_bytes());
  }

  /// What the times of `cell` are relative to: checkpoint of its objective, else standard; null where the
  /// group has none that ran.
  static const Pending* base_of(const Pending& cell, const std::vector<Pending>& pending) {
    for (const Method method : {Method::kCheckpoint, Method::kStandard}) {
      for (const Pending& other : pending) {
        const Cell& what = other.run.cell();
        if (what.settings.method == method && what.objective == cell.run.cell().objective &&
            !other.run.failed())
          return &other;
      }
    }
    return nullptr;
  }

  /// The interval of the cell's times relative to its base's; of its own median where it has no base.
  static MedianInterval time_of(const Pending& cell, const std::vector<Pending>& pending) {
    const Pending* const base = base_of(cell, pending);
    if (base == nullptr) return median_interval(cell.run.seconds());
    return paired_interval(cell.run.seconds(), base->run.seconds());
  }

  void finish(Pending& cell, const std::vector<Pending>& pending) {
    cell.done = true;
    const int cuda_index = bench_.device.is_cuda() ? bench_.device.index() : -1;
    json record =
        cell.run.record(describe_environment(bench_.options.threads, cuda_index, bench_.options.arguments));
    // The configuration is the chosen one, the key that of what was asked for: --resume knows it by that.
    record["key"] = keys_[cell.index];
    if (choices_[cell.index]) record["choice"] = choice_member(*choices_[cell.index]);
    if (bench_.options.repeats == 0 && !cell.run.failed()) {
      if (const Pending* const base = base_of(cell, pending); base != nullptr && base != &cell)
        record["relative_time"] =
            relative_time(time_of(cell, pending), method_name(base->run.cell().settings.method));
    }
    file_.append(record);
    show(cell.index, record);
    if (record.at("status") == "error") complain(cell);
    if (bench_.options.dump_gradients && !cell.run.failed())
      write_gradients(*bench_.options.dump_gradients, *models_.policy);
    if (cell.run.recording() != nullptr) write_recording(bench_.options, *cell.run.recording(), record);
  }

  /// A failed cell ends the program with exit code 1: why is not left to the records.
  void complain(const Pending& cell) {
    progress_.clear();
    print_line(stderr, "streambp-bench: {}: {}", describe(cell), cell.run.error());
  }

  void show(size_t index, const json& record) {
    results_[index] = record;
    progress_.clear();
    if (!bench_.options.json) return;
    fmt::print("{}\n", json_text(record));
    std::fflush(stdout);
  }

  std::string describe(const Pending& cell) const {
    const Cell& what = cell.run.cell();
    return fmt::format("[{}/{}] length {}, batch {}, {}, {}{}", cell.index + 1, cells_.size(), what.seq_len,
                       what.batch, what.objective, method_name(what.settings.method),
                       what.settings.chunk > 0 ? fmt::format(", chunk {}", what.settings.chunk) : "");
  }

  /// The first passes of a process pay for threads, code and pages that later ones find ready: each method of
  /// the first group that is run goes `warmup` times untimed. On a GPU each cell does: kernels are chosen and
  /// plans made for its shapes.
  void warm_up(const std::vector<Pending>& pending) {
    const bool every_cell = bench_.device.is_cuda();
    if ((warm_ && !every_cell) || pending.empty()) return;
    warm_ = true;
    if (every_cell) torch_private::empty_cache(bench_.device);  // earlier groups' would count as reserved
    std::set<Method> warmed;
    for (const Pending& cell : pending) {
      const bool is_first = warmed.insert(cell.run.cell().settings.method).second;
      if (cell.run.failed() || (!is_first && !every_cell)) continue;
      CellRun discarded = cell.run;
      for (int64_t i = 0; i < bench_.options.warmup && !discarded.failed(); ++i) {
        progress_.show(describe(cell) + ", warm-up");
        discarded.repeat(models_);
      }
    }
  }

  /// What a matrix product gives here and now, for the records of measured cells. It is measured beside each
  /// group of cells that takes longer than it does: beside passes of milliseconds the last one holds for
  /// seconds.
  void measure_machine(std::vector<Pending>& pending) {
    const bool any =
        std::any_of(pending.begin(), pending.end(), [](const Pending& cell) { return !cell.run.failed(); });
    if (!any || bench_.device.is_meta()) return;
    const auto now = std::chrono::steady_clock::now();
    if (!gemm_measured_ || now - *gemm_measured_ > kGemmHolds) {
      gemm_rate_ = measure_gemm(bench_.options.setup.dtype, bench_.device);
      gemm_measured_ = now;
    }
    for (Pending& cell : pending) cell.run.set_gemm(gemm_rate_);
  }

  /// The reference's log-probabilities are computed before the passes; with --release-reference its weights
  /// go before they begin.
  void ask_reference(std::vector<Pending>& pending) {
    if (pending.empty() || !models_.policy) return;
    if (!bench_.options.setup.reference.empty() && !models_.reference) {
      try {
        models_.reference = plan::open_reference(bench_.options.setup, bench_.device);
      } catch (const std::exception& error) {
        if (!is_out_of_memory(error)) throw;
        for (Pending& cell : pending) cell.run.run_out(failure_of(error));
        return;
      }
    }
    for (Pending& cell : pending) {
      if (!cell.run.failed()) cell.run.prepare(models_);
    }
    if (bench_.options.setup.release_reference) models_.reference.reset();
  }

  void open_models_once() {
    if (models_.policy || load_failure_) return;
    try {
      progress_.show("loading " + bench_.options.setup.model);
      models_ = plan::open_models(bench_.options.setup, bench_.device);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      models_ = {};
      load_failure_ = failure_of(error);
      load_failure_->error.insert(0, "the model does not fit: ");
    }
  }

  void warn_if_unscored(const Cell& cell) {
    if (bench_.batch ? bench_.batch_scored : cell.seq_len > 1) return;
    progress_.clear();
    fmt::print(
        stderr,
        "streambp-bench: warning: length {}, batch {}: no token has a label; loss and gradients are 0\n",
        cell.seq_len, cell.batch);
  }

  /// The cell of the shortest length that ran out of memory as `cell` would, if `cell` is as long.
  std::optional<size_t> shortest_oom(const Cell& cell) const {
    std::optional<size_t> shortest;
    for (size_t i = 0; i < cells_.size(); ++i) {
      const Cell& other = cells_[i];
      if (other.seq_len > cell.seq_len || results_[i].is_null() || results_[i].at("status") != "oom" ||
          nothing_fits(i) || other.automatic)
        continue;
      Cell as_long = other;
      as_long.seq_len = cell.seq_len;
      if (cell_configuration(bench_, as_long) != cell_configuration(bench_, cell)) continue;
      if (!shortest || other.seq_len < cells_[*shortest].seq_len) shortest = i;
    }
    return shortest;
  }

  /// Whether a choice was made and nothing fits the budget, which says nothing about the device.
  bool nothing_fits(size_t index) const { return choices_[index] && !choices_[index]->chosen; }

  const Bench& bench_;
  std::vector<Cell> cells_;
  std::vector<std::string> keys_;  // of each cell as it was asked for
  std::vector<std::optional<plan::Choice>>
      choices_;  // of each cell: made for automatic ones, but not known ones
  std::vector<std::optional<MemoryFailure>> shortages_;  // of each cell: why none could be made
  RecordFile& file_;
  SweepProgress progress_;
  plan::Models models_;
  std::optional<MemoryFailure> load_failure_;
  bool warm_ = false;
  std::vector<std::optional<json>> known_;  // of each cell: a record by which it need not be run again
  std::vector<json> results_;               // of each cell
  std::optional<double> gemm_rate_;
  std::optional<std::chrono::steady_clock::time_point> gemm_measured_;
};

}  // namespace

std::vector<json> measure_cells(const Bench& bench, const std::vector<Cell>& cells) {
  const SweepOptions& options = bench.options;
  RecordFile file(options.out);
  require_resume(file.path(), file.records().size(), options.resume);
  if (!bench.device.is_cuda()) {
    const int64_t most = bench.device.is_meta() ? 0 : usable_part(available_memory());
    set_memory_limit(bench.device.type(), options.memory_limit.value_or(most));
  }
  Sweep sweep(bench, cells, file);
  file.start();
  return sweep.run();
}

int run_sweep(const SweepOptions& options) {
  set_threads(options.threads, "streambp-bench");
  const Bench bench = open_bench(options);
  const std::vector<json> records = measure_cells(bench, list_cells(bench));
  if (!options.json) {
    fmt::print("{}", sweep_table(records));
    print_line(stdout, "records: {}", (options.out / "results.jsonl").string());
  }
  return exit_code_of(records);
}

}  // namespace streambp::bench
