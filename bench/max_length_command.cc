#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "bench/commands.h"
#include "bench/json_members.h"
#include "bench/progress.h"
#include "bench/remedies.h"
#include "bench/run_flags.h"
#include "bench/sweep_cells.h"
#include "streambp/cli/command_line.h"
#include "streambp/cli/print.h"
#include "streambp/cli/records.h"
#include "streambp/cli/table.h"
#include "streambp/error.h"
#include "streambp/plan/suggest.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

struct Typed {
  std::string budget;
  std::string host_budget;
  std::string device = "meta";
  int64_t seq_len = 0;
  bool suggest = false;
  bool json = false;
  bool quiet = false;
};

constexpr const char* kExamples = R"(Examples:
  streambp-bench max-length --model qwen3-8b --budget 80GiB
  streambp-bench max-length --model qwen3-8b --budget 80GiB --optimizer adamw --optimizer-bits 8
  streambp-bench max-length --model llama-3.1-8b --lora-rank 32 --objective sft,dpo,grpo --batch 8 --budget 24GB --json
  streambp-bench max-length --model qwen3-14b --budget 80GiB --suggest --seq-len 32768
  streambp-bench max-length --model qwen3-8b --budget 80GiB --method standard,auto

The peak is that of one back-propagation as the allocator would count it: weights, gradients, optimizer states and all
tensors of the pass, but neither the optimizer's step nor a device's own context. An objective's sequence is as in
sweep: for dpo a pair, half of the tokens for each of its two completions.

Costs (--suggest, --method auto): time relative to standard back-propagation by the operations that are executed, what goes
to the host and back, and 1 + 20 / chunk for products of few rows (streambp/plan/cost_model.h); an estimate to rank settings by.

Exit codes: 0 all good; 2 bad usage or input, a budget below weights, gradients and optimizer states among them;
3 some method does not fit at any length.)";

/// A row of the table and an object of --json.
struct Row {
  Cell cell;  // of the longest sequence that fits
  plan::LongestFit fit;
  std::optional<double> cost;
  bool best = false;
  json choice = nullptr;  // of --method auto: how it was chosen
};

Row row_of(Cell cell, const plan::Suggestion& suggestion) {
  cell.settings = suggestion.settings;
  cell.seq_len = suggestion.fit.seq_len;
  return {std::move(cell), suggestion.fit, suggestion.cost, suggestion.best, nullptr};
}

json to_json(const Bench& bench, const Row& row, const plan::Budget& budget) {
  const plan::LongestFit& fit = row.fit;
  const plan::Prediction& shown = fit.fits() ? *fit.at_longest : fit.at_shortest;
  json object = cell_configuration(bench, row.cell);
  object.update({{"schema", kRecordSchema},
                 {"kind", "predicted"},
                 {"budget_bytes", budget.device},
                 {"host_budget_bytes", positive_or_null(budget.host)},
                 {"seq_len", fit.fits() ? shown.seq_len : 0},
                 {"tokens", fit.fits() ? shown.tokens : 0},
                 {"model_flops", shown.model_flops},
                 {"hardware_flops", shown.hardware_flops},
                 {"resolution_tokens", fit.resolution},
                 {"chunk", positive_or_null(shown.chunk)},
                 {"head_chunk", positive_or_null(shown.head_chunk)},
                 {"peak_bytes", shown.peak_bytes},
                 {"resident_bytes", shown.resident_bytes},
                 {"host_peak_bytes", shown.host_peak_bytes},
                 {"breakdown", shown.breakdown},
                 {"evaluations", fit.evaluations},
                 {"status", fit.fits() ? "ok" : "oom"},
                 {"error", nullptr}});
  if (!fit.fits())
    object["error"] = fmt::format("{} tokens need {}", shown.seq_len, plan::describe(shown.breakdown));
  if (row.cost) object.update({{"relative_cost", *row.cost}, {"suggested", row.best}});
  if (!row.choice.is_null()) object["choice"] = row.choice;
  return object;
}

/// What a pass keeps of its layers, in a word or two.
std::string describe_kept(const Settings& settings) {
  const auto describe = method_kind(settings.method).describe_kept;
  return describe == nullptr ? "-" : describe(settings);
}

std::string table_of(const std::vector<Row>& rows, const plan::Budget& budget, bool with_costs) {
  std::vector<std::string> header{"objective", "method",  "chunk",  "keeps", "head",
                                  "batch",     "seq_len", "tokens", "peak",  "host"};
  if (with_costs) header.insert(header.end(), {"cost", "suggested"});
  header.push_back("of it");
  Table table(header);
  for (const Row& row : rows) {
    const plan::LongestFit& fit = row.fit;
    const Settings& settings = row.cell.settings;
    const plan::Prediction& shown = fit.fits() ? *fit.at_longest : fit.at_shortest;
    std::vector<std::string> cells{row.cell.objective,
                                   method_name(settings.method) + (row.choice.is_null() ? "" : " auto"),
                                   shown.chunk > 0 ? fmt::format("{}", shown.chunk) : "-",
                                   describe_kept(settings),
                                   settings.streams_head() ? "streamed" : "full",
                                   fmt::format("{}", row.cell.batch),
                                   fit.fits() ? fmt::format("{}", shown.seq_len) : "-",
                                   fit.fits() ? fmt::format("{}", shown.tokens) : "-",
                                   format_bytes(shown.peak_bytes),
                                   shown.host_peak_bytes > 0 ? format_bytes(shown.host_peak_bytes) : "-"};
    if (with_costs) {
      cells.push_back(fmt::format("{:.3f}", row.cost.value_or(0.0)));
      cells.push_back(row.best ? "yes" : "");
    }
    const std::string parts = plan::describe(shown.breakdown);
    cells.push_back((fit.fits() ? "" : fmt::format("at {} tokens: ", shown.seq_len)) +
                    parts.substr(parts.find(':') + 2));
    table.add(cells);
  }
  return table.text() +
         fmt::format("budget: {} ({} bytes){}\n", format_bytes(budget.device), budget.device,
                     budget.host > 0 ? fmt::format(", of the host {}", format_bytes(budget.host)) : "");
}

/// Of what suggest() found, the best; where nothing fits, what needs the least for the shortest sequence.
Row furthest_of(const Cell& cell, const std::vector<plan::Suggestion>& found, const plan::Budget& budget) {
  const auto best =
      std::min_element(found.begin(), found.end(), [&](const plan::Suggestion& a, const plan::Suggestion& b) {
        if (a.best != b.best) return a.best;
        return budget.share(a.fit.at_shortest) < budget.share(b.fit.at_shortest);
      });
  Row row = row_of(cell, *best);
  const std::string name = configuration_text(best->settings);
  const std::string reason =
      best->best
          ? fmt::format("{}: {} tokens, the furthest of {} configurations, or the cheapest within 1 % of it",
                        name, best->fit.seq_len, found.size())
          : fmt::format("no length fits {}: {}, the leanest of {} configurations, needs {} for {} tokens",
                        format_bytes(budget.device), name, found.size(),
                        format_bytes(best->fit.at_shortest.peak_bytes), best->fit.at_shortest.seq_len);
  json considered = json::array();
  for (const plan::Suggestion& other : found) {
    considered.push_back({{"way", configuration_text(other.settings)},
                          {"seq_len", other.fit.seq_len},
                          {"relative_cost", other.cost}});
  }
  row.choice = {{"asked", "auto"},
                {"budget_bytes", budget.device},
                {"relative_cost", best->cost},
                {"reason", reason},
                {"considered", considered}};
  return row;
}

std::vector<Row> longest_of_all(const Bench& bench, plan::Predictor& predictor, const plan::Budget& budget,
                                ProgressLine& progress) {
  std::vector<Row> rows;
  for (Cell& cell : list_cells(bench)) {
    const std::string method = cell.automatic ? "auto" : method_name(cell.settings.method);
    progress.show(fmt::format("{}, {}", cell.objective, method));
    const plan::TrainingStep step = step_of(bench, cell);
    if (!cell.automatic) {
      Row row;
      row.fit = plan::longest(predictor, step, cell.settings, budget);
      cell.seq_len = row.fit.seq_len;
      cell.settings = row.fit.settings;
      row.cell = cell;
      rows.push_back(row);
      continue;
    }
    cell.automatic = false;
    rows.push_back(furthest_of(
        cell, plan::suggest(predictor, step, search_space(bench.options), budget, /*wanted=*/0), budget));
    progress.clear();
    if (bench.options.quiet) continue;
    print_line(stderr, "batch {}, {}: auto: {}", cell.batch, cell.objective,
               rows.back().choice.at("reason").get<std::string>());
  }
  return rows;
}

std::vector<Row> suggestions(const Bench& bench, plan::Predictor& predictor, const plan::Budget& budget,
                             int64_t wanted) {
  std::vector<Row> rows;
  for (const int64_t batch : bench.options.batches) {
    for (const std::string& objective : bench.options.objectives) {
      Cell cell;
      cell.objective = objective;
      cell.batch = batch;
      for (const plan::Suggestion& found :
           plan::suggest(predictor, step_of(bench, cell), search_space(bench.options), budget, wanted))
        rows.push_back(row_of(cell, found));
    }
  }
  return rows;
}

int run_max_length(const RunFlags& flags, const Typed& typed) {
  SweepOptions options;
  flags.read(options);
  if (typed.suggest && !flags.names_methods()) {
    options.methods.clear();
    options.picks_method = true;
  }
  options.quiet = typed.quiet;
  if (typed.device != "meta" && typed.device != "meta:cuda")
    throw InputError("--device '{}': lengths are predicted, expected meta or meta:cuda", typed.device);
  if (typed.seq_len > 0 && !typed.suggest)
    throw InputError("--seq-len: the wanted length, expected with --suggest");
  if (typed.seq_len > plan::kLongest)
    throw InputError("--seq-len {}: expected {} at most", typed.seq_len, plan::kLongest);
  plan::Budget budget{parse_bytes(typed.budget, "--budget"), 0};
  if (!typed.host_budget.empty()) budget.host = parse_bytes(typed.host_budget, "--host-budget");
  options.device = typed.device;
  options.lengths = {plan::kShortest};
  const Bench bench = open_bench(options);
  ProgressLine progress(!typed.quiet);
  progress.show("making " + options.setup.model);
  std::optional<plan::Predictor> predictor(std::in_place, bench.options.setup, bench.device);
  if (const plan::Prediction floor = predictor->floor(); floor.peak_bytes > budget.device) {
    predictor.reset();
    progress.show("looking for what would fit");
    const std::string remedies = describe_remedies(bench, budget);
    progress.clear();
    throw InputError("--budget {}: below what {} needs before any pass, {}; {}", typed.budget,
                     options.setup.model, plan::describe(floor.breakdown), remedies);
  }
  const std::vector<Row> rows = typed.suggest ? suggestions(bench, *predictor, budget, typed.seq_len)
                                              : longest_of_all(bench, *predictor, budget, progress);
  predictor.reset();
  progress.clear();
  if (typed.json) {
    for (const Row& row : rows) fmt::print("{}\n", json_text(to_json(bench, row, budget)));
  } else {
    fmt::print("{}", table_of(rows, budget, typed.suggest));
  }
  const bool fits = std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.fit.fits(); });
  if (!fits && typed.seq_len == 0)
    print_line(stderr, "streambp-bench: no length fits {}; {}", typed.budget,
               describe_remedies(bench, budget));
  const auto counts = [&](const Row& row) { return typed.suggest ? row.best : !row.fit.fits(); };
  const bool any = std::any_of(rows.begin(), rows.end(), counts);
  return any == typed.suggest ? kExitGood : kExitOutOfMemory;
}

}  // namespace

void add_max_length_command(CLI::App& app, Action& action) {
  const auto typed = std::make_shared<Typed>();
  CLI::App* const command = app.add_subcommand(
      "max-length",
      "The longest sequence that fits a memory budget, predicted without a GPU; lists are comma-separated");
  command->footer(describe_methods() + "\n" + describe_objectives() + "\n" + kExamples);
  const auto flags = std::make_shared<RunFlags>(*command, RunFlags::Defaults{"qwen3-8b", "model"});
  command->add_option("--budget", typed->budget, "Memory of the device, such as 80GB or 80GiB")->required();
  command->add_option(
      "--host-budget", typed->host_budget,
      "Memory of the host for --offload host; with --suggest or --method auto, offloading is tried too");
  command->add_flag(
      "--suggest", typed->suggest,
      "Also try chunks and heads, and without --method all methods: which reach --seq-len, or the greatest "
      "length, at the least cost");
  command->add_option("--seq-len", typed->seq_len, "Wanted tokens of a sequence, with --suggest")
      ->check(from_to(1, static_cast<int>(plan::kLongest)));
  command
      ->add_option("--device", typed->device,
                   "meta, or meta:cuda: as the CPU's or a GPU's kernels would take memory")
      ->capture_default_str();
  command->add_flag("--json", typed->json, "Print a JSON object for each row instead of the table");
  command->add_flag("--quiet", typed->quiet, "No progress on the terminal");
  command->callback(
      [typed, flags, &action] { action = [typed, flags] { return run_max_length(*flags, *typed); }; });
}

}  // namespace streambp::bench
